{{- define "gpreempt.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "gpreempt.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpreempt.labels" -}}
{{ include "gpreempt.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "gpreempt.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Where the library is on nodes. */}}
{{- define "gpreempt.host" -}}
{{- $presets := dict "default" "/opt/gpreempt" "talos" "/var/lib/gpreempt" "bottlerocket" "/var/lib/gpreempt" "cos" "/home/kubernetes/bin/gpreempt" -}}
{{- .Values.host.path | default (get $presets .Values.host.preset) }}
{{- end }}

{{- define "gpreempt.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsUser: 0
capabilities:
  drop: [ALL]
{{- end }}

{{/* A role as TOML and CEL have it: a name or a digit, as text. */}}
{{- define "gpreempt.rule" -}}
{{- with .level }}
level = {{ toString . | quote }}
{{- else }}{{ if eq (toString .level) "0" }}
level = "0"
{{- end }}{{ end }}
{{- with .role }}
role = {{ toString . | quote }}
{{- else }}{{ if eq (toString .role) "0" }}
role = "0"
{{- end }}{{ end }}
{{- end }}

{{/* NVIDIA's container runtime reads this: all GPUs, for their management library alone. */}}
{{- define "gpreempt.seesGPUs" -}}
{{- if .Values.others.enabled -}}
env:
  - {name: NVIDIA_VISIBLE_DEVICES, value: all}
  - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- end }}
{{- end }}

{{- /* The forms of a limit of memory, likewise. */}}
{{- define "gpreempt.memoryLimitAllowed" -}}
a whole number with MB or GB (1 GB = 1024 MB), as 10GB, or with %, 1 to 100, as 40% of the GPU's memory; or none
{{- end }}

{{- /* The forms of an objective, as every message about one names them. */}}
{{- define "gpreempt.objectiveAllowed" -}}
slowdown=1.5 (1 to 20) or step=20ms (0.1ms to 60s), with first=200ms and p=99 (50 to 99.99) if wanted, separated by commas; or none
{{- end }}
