{{- define "lb-linker.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
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
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lb-linker.labels" -}}
{{ include "lb-linker.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
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
    name: {{ include "lb-linker.serviceAccount" . }}
    namespace: {{ .Release.Namespace }}
{{- end -}}

{{- define "lb-linker.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
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
- --zone={{ join "," .Values.zones }}
{{- with .Values.upstreams }}
- --upstream={{ join "," . }}
{{- end }}
{{- end }}
{{- if ne .Values.targetNamespace.name "external-targets" }}
- --target-namespace={{ .Values.targetNamespace.name }}
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
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}
