{{- /* A ServiceAccount. Takes root, component. */ -}}
{{- define "linkerd.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: linkerd-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "linkerd.labels" . | nindent 4 }}
  annotations:
    {{- include "linkerd.annotations" .root | nindent 4 }}
automountServiceAccountToken: false
{{- end -}}

{{- /*
A role and its binding to the ServiceAccount of a component. Takes root, component, kind (Role or ClusterRole), name, rules (YAML),
and binding: the binding's name, if it is another.
*/ -}}
{{- define "linkerd.role" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}
metadata:
  {{- include "linkerd.role.metadata" . | nindent 2 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  {{- include "linkerd.role.metadata" (merge (dict "name" (.binding | default .name)) .) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: linkerd-{{ .component }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{- define "linkerd.role.metadata" -}}
name: {{ .name }}
{{- if eq .kind "Role" }}
namespace: {{ .root.Release.Namespace }}
{{- end }}
labels:
  {{- include "linkerd.labels" . | nindent 2 }}
annotations:
  {{- include "linkerd.annotations" .root | nindent 2 }}
{{- end -}}
