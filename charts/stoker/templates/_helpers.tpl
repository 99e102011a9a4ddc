{{- /* Names are fixed, not made from the release's: they are part of the contract, and one installation serves a cluster. */ -}}

{{- define "stoker.labels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{ end -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
app.kubernetes.io/name: stoker
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: stoker
{{- end }}

{{- define "stoker.injector.labels" -}}
{{ include "stoker.labels" . }}
app.kubernetes.io/component: injector
{{- end }}

{{- /* The release's name is not among them: Argo CD may track objects by that label. */ -}}
{{- define "stoker.injector.selector" -}}
app.kubernetes.io/name: stoker
app.kubernetes.io/component: injector
{{- end }}

{{- define "stoker.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "stoker.injector.image" -}}
{{- $repository := printf "%s/injector" .Values.image.registry -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ include "stoker.tag" . }}
{{- end -}}
{{- end }}

{{- define "stoker.agent.image" -}}
{{- $repository := .Values.agentImage.repository | default (printf "%s/agent" .Values.image.registry) -}}
{{- if .Values.agentImage.digest -}}
{{ $repository }}@{{ .Values.agentImage.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.agentImage.tag | default (include "stoker.tag" .) }}
{{- end -}}
{{- end }}

{{- /* Who gives the webhook its certificate: own, or a mounted Secret. */ -}}
{{- define "stoker.certificates" -}}
{{- if or .Values.webhook.certManager.enabled .Values.webhook.existingSecret }}mounted{{ else }}own{{ end -}}
{{- end }}

{{- define "stoker.certificate.secret" -}}
{{ .Values.webhook.existingSecret | default "stoker-injector-cert" }}
{{- end }}
