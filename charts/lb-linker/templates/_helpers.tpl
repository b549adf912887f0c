{{- define "lb-linker.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- /* A release's name may have dots, the name of a Service can't. */ -}}
{{- $name = replace "." "-" .Release.Name -}}
{{- if not (contains .Chart.Name $name) -}}
{{- $name = printf "%s-%s" $name .Chart.Name -}}
{{- end -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]" $name) -}}
{{- fail (printf "the release's name must begin with a letter, or fullnameOverride must be set: a Service can't be called %s" $name) -}}
{{- end -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- /* Names of objects outside of namespaces: releases of the same name in other namespaces have others. */ -}}
{{- define "lb-linker.clusterName" -}}
{{- $name := include "lb-linker.fullname" . -}}
{{- if eq $name .Release.Namespace -}}
{{- $name -}}
{{- else -}}
{{- printf "%s.%s" .Release.Namespace $name -}}
{{- end -}}
{{- end -}}

{{- define "lb-linker.selectorLabels" -}}
app.kubernetes.io/name: lb-linker
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "lb-linker.chartLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "lb-linker.labels" -}}
{{ include "lb-linker.selectorLabels" . }}
{{ include "lb-linker.chartLabels" . }}
{{- end -}}

{{- define "lb-linker.clusterDnsLabels" -}}
app.kubernetes.io/name: lb-linker-cluster-dns
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{ include "lb-linker.chartLabels" . }}
{{- end -}}

{{- define "lb-linker.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "lb-linker.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name must name a ServiceAccount, because serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "lb-linker.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "lb-linker.serviceAccount" . | quote }}
    namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{- /* A released chart names its image, with the digest, in an annotation: values of an older release that are reused
must not bring back the older image. */ -}}
{{- define "lb-linker.image" -}}
{{- $released := index .Chart.Annotations "linker.hsj.com/image" | default "" -}}
{{- $repository := .Values.image.repository | default (first (splitList "@" $released)) | default "lb-linker" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else if or .Values.image.repository .Values.image.tag (not $released) -}}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- else -}}
{{- $released -}}
{{- end -}}
{{- end -}}

{{- /* The value of --cluster-domain: a flag has precedence over its variable. Empty if it isn't known, as with valueFrom. */ -}}
{{- define "lb-linker.clusterDomain" -}}
{{- $domain := "cluster.local" -}}
{{- range .Values.extraEnv -}}
{{- if eq .name "LB_LINKER_CLUSTER_DOMAIN" -}}{{- $domain = .value | default "" -}}{{- end -}}
{{- end -}}
{{- $before := "" -}}
{{- range .Values.extraArgs -}}
{{- if eq $before "--cluster-domain" -}}{{- $domain = . -}}{{- end -}}
{{- if hasPrefix "--cluster-domain=" . -}}{{- $domain = trimPrefix "--cluster-domain=" . -}}{{- end -}}
{{- $before = . -}}
{{- end -}}
{{- $domain | lower | trimSuffix "." -}}
{{- end -}}

{{- /* lb-linker refuses such zones, too, but then its Pods are replaced already. */ -}}
{{- define "lb-linker.checkZones" -}}
{{- $domain := include "lb-linker.clusterDomain" . -}}
{{- range ternary .Values.zones (list) (ne $domain "") -}}
{{- $zone := . | lower | trimSuffix "." -}}
{{- if or (eq $zone $domain) (hasSuffix (printf ".%s" $zone) $domain) (hasSuffix (printf ".%s" $domain) $zone) -}}
{{- fail (printf "zones: %s equals, holds or lies in %s, the domain of the cluster's own names (--cluster-domain in extraArgs), and would hide them: give a zone outside of it" $zone $domain) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* As checkZones. */ -}}
{{- define "lb-linker.checkRemotes" -}}
{{- $known := list .Values.clusterName -}}
{{- range .Values.remotes -}}
{{- if has .name $known -}}
{{- fail (printf "remotes: %s is given twice, or is the clusterName of the release; each cluster needs a name of its own" .name) -}}
{{- end -}}
{{- $known = append $known .name -}}
{{- end -}}
{{- end -}}

{{- /* The Lease has the name of the other objects, which RBAC names too. */ -}}
{{- define "lb-linker.args" -}}
- run
{{- if .Values.corefile }}
- --corefile=/etc/lb-linker/Corefile
# Also if the Corefile has no lb_linker.
- --sync=on
{{- else }}
{{- include "lb-linker.checkZones" . }}
- {{ printf "--zone=%s" (join "," .Values.zones) | quote }}
{{- with .Values.sources }}
{{- if ne (join "," .) "service" }}
- {{ printf "--sources=%s" (join "," .) | quote }}
{{- end }}
{{- end }}
{{- with .Values.upstreams }}
- {{ printf "--upstream=%s" (join "," .) | quote }}
{{- end }}
{{- end }}
{{- if ne .Values.targetNamespace.name "external-targets" }}
- {{ printf "--target-namespace=%s" .Values.targetNamespace.name | quote }}
{{- end }}
{{- if ne (include "lb-linker.fullname" .) "lb-linker" }}
- --lease-name={{ include "lb-linker.fullname" . }}
{{- end }}
{{- if ne .Values.leaderElection "lease" }}
- --leader-election={{ .Values.leaderElection }}
{{- end }}
{{- if .Values.finalizer.enabled }}
- --finalizer
{{- end }}
{{- if .Values.snapshot.enabled }}
- --snapshot=/var/lib/lb-linker/links
{{- end }}
{{- if ne .Values.clusterName "home" }}
- --cluster-name={{ .Values.clusterName }}
{{- end }}
{{- include "lb-linker.checkRemotes" . }}
{{- range .Values.remotes }}
- {{ printf "--remote=%s=/etc/lb-linker-remotes/%s%s" .name .name (empty .context | ternary "" (printf ":%s" .context)) | quote }}
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}
