//! Writes a change of a ConfigMap of the cluster DNS.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use super::changes::{Backup, Change, config_map};
use super::platform::KUBE_SYSTEM;
use crate::sync::k8s::errors::describe;

/// Marks these changes in `managedFields`.
const FIELD_MANAGER: &str = "lb-linker-stub";

/// Writes a change, with the resourceVersion that was read as the precondition.
///
/// # Errors
/// One sentence, if the ConfigMap was changed since it was read, or if the API server refuses or can't be reached.
pub async fn write(client: &Client, change: &Change) -> Result<(), String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), KUBE_SYSTEM);
    let name = &change.config_map;
    let text = |text: &Option<String>| text.clone().map_or(Value::Null, Value::String);
    let written = if change.version.is_some() {
        let mut data = Map::new();
        data.insert(change.key.clone(), text(&change.after));
        match change.backup {
            Backup::Set => drop(data.insert(change.backup_key(), text(&change.before))),
            Backup::Remove => drop(data.insert(change.backup_key(), Value::Null)),
            Backup::Keep => {}
        }
        let patch = json!({"metadata": {"resourceVersion": change.version}, "data": data});
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        maps.patch(name, &params, &Patch::Merge(patch)).await
    } else {
        let data = change.after.iter().map(|text| (change.key.clone(), text.clone())).collect();
        let map = ConfigMap { data: Some(data), ..config_map(name) };
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        maps.create(&params, &map).await
    };
    match written {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Err(format!(
            "ConfigMap {KUBE_SYSTEM}/{name} was changed since it was read: run the command again"
        )),
        Err(error) => Err(describe(&error, &format!("change ConfigMap {KUBE_SYSTEM}/{name}"), "")),
    }
}
