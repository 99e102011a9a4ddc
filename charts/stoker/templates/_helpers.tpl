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

{{- /* Selectors do not include the release's name, because Argo CD may track objects by that label. */ -}}
{{- define "stoker.injector.selector" -}}
app.kubernetes.io/name: stoker
app.kubernetes.io/component: injector
{{- end }}

{{- define "stoker.injector.image" -}}
{{- include "stoker.part.image" (list . "injector" .Values.image) -}}
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

{{- /*
The image of a part: (list . "receiver" .Values.webhookReceiver.image). A digest wins, then a tag, then the digest of the release, which only
the chart of a release has.
*/ -}}
{{- define "stoker.part.image" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $image := index . 2 -}}
{{- $repository := $image.repository | default (printf "%s/%s" $root.Values.image.registry $part) -}}
{{- $tag := $image.tag | default $root.Values.image.tag -}}
{{- $digest := $image.digest -}}
{{- if not (or $digest $tag) -}}
{{- $digest = get (fromYaml ($root.Files.Get "files/digests.yaml")) $part -}}
{{- end -}}
{{- if $digest -}}
{{ $repository }}@{{ $digest }}
{{- else -}}
{{ $repository }}:{{ $tag | default $root.Chart.AppVersion }}
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

{{- /* The labels and annotations of the pods of a workload: (list $ .Values.notifier "notifier"). */ -}}
{{- define "stoker.pod.metadata" -}}
labels:
  {{- include (printf "stoker.%s.labels" (index . 2)) (index . 0) | nindent 2 }}
  {{- with (index . 1).podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with (index . 1).podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* What the specs of these pods have in common, with the same arguments. */ -}}
{{- define "stoker.pod.spec" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- $part := index . 2 -}}
serviceAccountName: stoker-{{ $part }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $values $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
topologySpreadConstraints:
  {{- with $values.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include (printf "stoker.%s.selector" $part) $root | nindent 8 }}
  {{- end }}
  {{- end }}
securityContext:
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- /* How Prometheus reads an endpoint: .Values.metrics.podMonitor. */ -}}
{{- define "stoker.scrape" -}}
interval: {{ .interval }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- with .relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* What cert-manager issues to a part: (list $ "injector" .Values.webhook.certManager "name of the Secret"). */ -}}
{{- define "stoker.issued" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $values := index . 2 -}}
{{- if not $values.issuerRef -}}
# An authority that outlives its certificates and keeps its key when it is renewed, so that clients trust the previous
# certificate while replicas still serve it. With a self-signed certificate they would trust only the newest, before replicas have it.
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: stoker-{{ $part }}-authority
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include (printf "stoker.%s.labels" $part) $root | nindent 4 }}
spec:
  selfSigned: {}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: stoker-{{ $part }}-authority
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include (printf "stoker.%s.labels" $part) $root | nindent 4 }}
spec:
  isCA: true
  commonName: stoker-{{ $part }}-authority
  secretName: stoker-{{ $part }}-authority
  duration: 87600h
  privateKey:
    algorithm: ECDSA
    size: 256
    rotationPolicy: Never
  issuerRef:
    name: stoker-{{ $part }}-authority
    kind: Issuer
    group: cert-manager.io
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: stoker-{{ $part }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include (printf "stoker.%s.labels" $part) $root | nindent 4 }}
spec:
  ca:
    secretName: stoker-{{ $part }}-authority
---
{{ end -}}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: stoker-{{ $part }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include (printf "stoker.%s.labels" $part) $root | nindent 4 }}
spec:
  secretName: {{ index . 3 }}
  dnsNames:
    - stoker-{{ $part }}.{{ $root.Release.Namespace }}.svc
    - stoker-{{ $part }}.{{ $root.Release.Namespace }}.svc.cluster.local
    {{- range $values.dnsNames }}
    - {{ . | quote }}
    {{- end }}
  issuerRef:
    {{- with $values.issuerRef }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    name: stoker-{{ $part }}
    kind: Issuer
    group: cert-manager.io
    {{- end }}
{{- end }}

{{- /* Binds a Role, or a ClusterRole if the namespace is "", to the account of a part: (list $ "injector" "name of the role" "namespace"). */ -}}
{{- define "stoker.binding" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $name := index . 2 -}}
{{- $namespace := index . 3 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if not $namespace }}Cluster{{ end }}RoleBinding
metadata:
  name: {{ $name }}
  {{- with $namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include (printf "stoker.%s.labels" $part) $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ if not $namespace }}Cluster{{ end }}Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: stoker-{{ $part }}
    namespace: {{ $root.Release.Namespace | quote }}
{{- end }}

{{- /* The right of a part to its Lease, which cannot be listed: (list $ "injector"). */ -}}
{{- define "stoker.lease" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: stoker-{{ $part }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include (printf "stoker.%s.labels" $part) $root | nindent 4 }}
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [create]
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [stoker-{{ $part }}]
    verbs: [get, update]
---
{{ include "stoker.binding" (list $root $part (printf "stoker-%s" $part) $root.Release.Namespace) }}
{{- end }}

{{- /* Grants the rules of a part, such as "stoker.receiver.rules", in all namespaces, or in those of watchNamespaces: (list $ "receiver"). */ -}}
{{- define "stoker.watch" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- range $root.Values.watchNamespaces | default (list "") }}
{{- $name := printf "stoker-%s%s" $part (ternary "-watch" "" (ne . "")) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if not . }}Cluster{{ end }}Role
metadata:
  name: {{ $name }}
  {{- with . }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include (printf "stoker.%s.labels" $part) $root | nindent 4 }}
rules:
  {{- include (printf "stoker.%s.rules" $part) $root | nindent 2 }}
---
{{ include "stoker.binding" (list $root $part $name .) }}
{{- end }}
{{- end }}

{{- /* The right of a part to read Secrets by name: (list $ "receiver" .Values.webhookReceiver.secrets). */ -}}
{{- define "stoker.secrets" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $secrets := dict }}
{{- range index . 2 }}
{{- $_ := set $secrets .namespace (append (get $secrets .namespace | default list) .name | uniq) }}
{{- end }}
{{- range $namespace, $names := $secrets }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: stoker-{{ $part }}-secrets
  namespace: {{ $namespace | quote }}
  labels:
    {{- include (printf "stoker.%s.labels" $part) $root | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [secrets]
    resourceNames:
      {{- toYaml $names | nindent 6 }}
    verbs: [get]
---
{{ include "stoker.binding" (list $root $part (printf "stoker-%s-secrets" $part) $namespace) }}
{{- end }}
{{- end }}
