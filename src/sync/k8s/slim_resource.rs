//! Types with only some fields of a kind of objects.

/// Makes a type with a field `metadata` a resource, of version v1 without another one.
macro_rules! slim_resource {
    ($object:ty, $scope:ty, $kind:literal, $group:literal, $plural:literal) => {
        $crate::sync::k8s::slim_resource::slim_resource!($object, $scope, $kind, $group, $plural, "v1");
    };
    ($object:ty, $scope:ty, $kind:literal, $group:literal, $plural:literal, $version:literal) => {
        impl ::kube::Resource for $object {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> ::std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> ::std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> ::std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> ::std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use slim_resource;
