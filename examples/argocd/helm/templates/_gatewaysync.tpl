{{- /* Used twice: for the cluster, and for the preflight Job, which checks it before. */ -}}
{{- define "gatewaysync" -}}
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata:
  name: line
  annotations:
    argocd.argoproj.io/sync-wave: "0"
spec:
  git:
    repo: {{ .Values.repo | quote }}
    ref: {{ .Values.revision | quote }}
    {{- with .Values.caSecretRef }}
    caSecretRef:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    auth:
      token:
        secretRef:
          name: git-credentials
          key: token
  gateway:
    api:
      managed: true # each agent makes an API key for its own gateway
  sync:
    profiles:
      default:
        mappings:
          - source: shared/projects
            destination: projects
          - source: services/site-a/projects
            destination: projects
          - source: services/site-a/config
            destination: config
            required: true
{{- end }}
