{{- /* Names, labels and values that more than one template needs. */ -}}

{{- define "linkerd.version" -}}
{{- .Values.linkerdVersion | default .Chart.AppVersion -}}
{{- end -}}

{{- define "linkerd.trustDomain" -}}
{{- .Values.identityTrustDomain | default .Values.clusterDomain -}}
{{- end -}}

{{- define "linkerd.controllerImage" -}}
{{- printf "%s:%s" .Values.controllerImage (.Values.controllerImageVersion | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "linkerd.proxyImage" -}}
{{- printf "%s:%s" .Values.proxy.image.name (.Values.proxy.image.version | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "linkerd.proxyPullPolicy" -}}
{{- .Values.proxy.image.pullPolicy | default .Values.imagePullPolicy -}}
{{- end -}}

{{- /* Labels of every object. Takes root and component; the component may be empty. */ -}}
{{- define "linkerd.labels" -}}
linkerd.io/control-plane-ns: {{ .root.Release.Namespace }}
{{- with .component }}
linkerd.io/control-plane-component: {{ . }}
{{- end }}
app.kubernetes.io/part-of: Linkerd
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "linkerd.annotations" -}}
linkerd.io/created-by: weft/helm {{ include "linkerd.version" . }}
{{- end -}}

{{- /* The resources of a container, if any, from the form that the values have: a kind, then request and limit. */ -}}
{{- define "linkerd.resources" -}}
{{- $requests := dict -}}
{{- $limits := dict -}}
{{- range $kind, $amount := . -}}
{{- with $amount -}}
{{- with .request }}{{ $_ := set $requests $kind (toString .) }}{{ end -}}
{{- with .limit }}{{ $_ := set $limits $kind (toString .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $resources := dict -}}
{{- if $requests }}{{ $_ := set $resources "requests" $requests }}{{ end -}}
{{- if $limits }}{{ $_ := set $resources "limits" $limits }}{{ end -}}
{{- with $resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* A group is left to the image if it is negative. Numbers of values are floats, so large ones need int64. */ -}}
{{- define "linkerd.group" -}}
{{- if ge (int64 .) 0 }}
runAsGroup: {{ int64 . }}
{{- end }}
{{- end -}}

{{- /* What a container of ours may do: nothing. Takes uid and gid. */ -}}
{{- define "linkerd.securityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: {{ int64 .uid }}
{{- include "linkerd.group" .gid }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* The environment that the values of a controller add, if any. */ -}}
{{- define "linkerd.env" -}}
{{- with concat (.additionalEnv | default list) (.experimentalEnv | default list) }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "linkerd.logArgs" -}}
- --log-level={{ .Values.controllerLogLevel }}
- --log-format={{ .Values.controllerLogFormat }}
{{- end -}}
