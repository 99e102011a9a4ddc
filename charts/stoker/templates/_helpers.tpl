{{- /* Names do not depend on the release's name: other programs refer to them, and one installation serves a cluster. */ -}}

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

{{- /* They do not include the release's name, because Argo CD may track objects by that label. */ -}}
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
{{- include "stoker.part.image" (list . "agent" .Values.agentImage) -}}
{{- end }}

{{- define "stoker.receiver.labels" -}}
{{ include "stoker.labels" . }}
app.kubernetes.io/component: receiver
{{- end }}

{{- define "stoker.receiver.selector" -}}
app.kubernetes.io/name: stoker
app.kubernetes.io/component: receiver
{{- end }}

{{- define "stoker.notifier.labels" -}}
{{ include "stoker.labels" . }}
app.kubernetes.io/component: notifier
{{- end }}

{{- define "stoker.notifier.selector" -}}
app.kubernetes.io/name: stoker
app.kubernetes.io/component: notifier
{{- end }}

{{- define "stoker.configsync.labels" -}}
{{ include "stoker.labels" . }}
app.kubernetes.io/component: configsync
{{- end }}

{{- define "stoker.configsync.selector" -}}
app.kubernetes.io/name: stoker
app.kubernetes.io/component: configsync
{{- end }}

{{- /* The image of a part with separate values: (list . "receiver" .Values.webhookReceiver.image). */ -}}
{{- define "stoker.part.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 2 -}}
{{- $repository := $image.repository | default (printf "%s/%s" $root.Values.image.registry (index . 1)) -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default (include "stoker.tag" $root) }}
{{- end -}}
{{- end }}

{{- /* The receiver's URL for senders in the cluster. */ -}}
{{- define "stoker.receiver.url" -}}
http{{ if .Values.webhookReceiver.tls.enabled }}s{{ end }}://stoker-receiver.{{ .Release.Namespace }}.svc:{{ .Values.webhookReceiver.service.port }}
{{- end }}

{{- define "stoker.receiver.certificate.secret" -}}
{{ .Values.webhookReceiver.tls.secretName | default "stoker-receiver-cert" }}
{{- end }}

{{- /* Shared files contain the receiver's URL with the default values. */ -}}
{{- define "stoker.withReceiverURL" -}}
{{- index . 1 | replace "http://stoker-receiver.stoker-system.svc:9444" (include "stoker.receiver.url" (index . 0)) -}}
{{- end }}

{{- /* The source of the webhook's certificate: own, or a mounted Secret. */ -}}
{{- define "stoker.certificates" -}}
{{- if or .Values.webhook.certManager.enabled .Values.webhook.existingSecret }}mounted{{ else }}own{{ end -}}
{{- end }}

{{- /* cert-manager uses a separate Secret, so that pods wait for it and do not start with an earlier self-signed certificate. */ -}}
{{- define "stoker.certificate.secret" -}}
{{ .Values.webhook.existingSecret | default (ternary "stoker-injector-tls" "stoker-injector-cert" .Values.webhook.certManager.enabled) }}
{{- end }}
