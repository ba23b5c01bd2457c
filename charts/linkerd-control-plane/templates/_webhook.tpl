{{- /*
The certificate of a webhook. Takes root, name (of the Service, such as linkerd-proxy-injector) and values (of the webhook).
Gives YAML with `secret` (the data of the Secret that the chart declares; absent if somebody else keeps it), `annotations` of
the Secret, and `ca` (PEM; absent if somebody else writes the caBundle). Called once in a render: what Helm makes is random.
*/ -}}
{{- define "linkerd.webhook.certificate" -}}
{{- $values := .values -}}
{{- $host := printf "%s.%s.svc" .name .root.Release.Namespace -}}
{{- $result := dict -}}
{{- $previous := "" -}}
{{- if $values.caBundle }}{{ $_ := set $result "ca" (trim $values.caBundle) }}{{ end -}}
{{- if or $values.externalSecret $values.selfCertificate -}}
{{- else if $values.crtPEM -}}
{{- $_ := set $result "secret" (dict "tls.crt" (trim $values.crtPEM) "tls.key" (trim $values.keyPEM)) -}}
{{- if not (or $values.caBundle $values.injectCaFrom $values.injectCaFromSecret) }}{{ $_ := set $result "ca" (trim $values.crtPEM) }}{{ end -}}
{{- else -}}
{{- $found := lookup "v1" "Secret" .root.Release.Namespace (printf "%s-k8s-tls" .name) | default dict -}}
{{- $data := get $found "data" | default dict -}}
{{- $renew := dig "metadata" "annotations" "weft/renew-after" "0" $found | int64 -}}
{{- if and (get $data "ca.crt") (lt (now | unixEpoch | int64) $renew) -}}
{{- range $key, $value := $data }}{{ $_ := set $data $key (b64dec $value) }}{{ end -}}
{{- $_ := set $result "secret" $data -}}
{{- else -}}
{{- $ca := genCAWithKey (printf "%s-ca" .name) 365 (genPrivateKey "ecdsa") -}}
{{- $leaf := genSignedCertWithKey $host nil (list $host) 365 $ca (genPrivateKey "ecdsa") -}}
{{- $_ := set $result "secret" (dict "tls.crt" $leaf.Cert "tls.key" $leaf.Key "ca.crt" $ca.Cert) -}}
{{- /* The kubelet brings the new certificate to the pods a minute later: until then the old one has to be good, too. */ -}}
{{- with get $data "ca.crt" }}{{ $previous = b64dec . }}{{ end -}}
{{- /* Two thirds of 365 days. */ -}}
{{- $renew = add (now | unixEpoch | int64) 21024000 -}}
{{- end -}}
{{- $_ := set $result "annotations" (dict "weft/renew-after" (toString $renew)) -}}
{{- $_ := set $result "ca" (print (get $result.secret "ca.crt") $previous) -}}
{{- end -}}
{{- toYaml $result -}}
{{- end -}}

{{- /* The Secret of a webhook. Takes root, component, name and certificate (as above). */ -}}
{{- define "linkerd.webhook.secret" -}}
{{- if .certificate.secret }}
apiVersion: v1
kind: Secret
metadata:
  name: {{ .name }}-k8s-tls
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "linkerd.labels" . | nindent 4 }}
  annotations:
    {{- include "linkerd.annotations" .root | nindent 4 }}
    {{- with .certificate.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
type: kubernetes.io/tls
data:
  {{- range $key, $value := .certificate.secret }}
  {{ $key }}: {{ b64enc $value }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* metadata of a webhook configuration. Takes root, component, name and values. */ -}}
{{- define "linkerd.webhook.metadata" -}}
name: {{ .name }}-webhook-config
labels:
  {{- include "linkerd.labels" . | nindent 2 }}
annotations:
  {{- include "linkerd.annotations" .root | nindent 2 }}
  {{- with .values.injectCaFrom }}
  cert-manager.io/inject-ca-from: {{ . }}
  {{- end }}
  {{- with .values.injectCaFromSecret }}
  cert-manager.io/inject-ca-from-secret: {{ . }}
  {{- end }}
{{- end -}}

{{- /* One webhook without its rules. Takes the same and certificate, timeout. */ -}}
{{- define "linkerd.webhook.entry" -}}
name: {{ .name }}.linkerd.io
admissionReviewVersions: [v1, v1beta1]
sideEffects: None
failurePolicy: {{ .root.Values.webhookFailurePolicy }}
{{- with .timeout }}
timeoutSeconds: {{ int64 . }}
{{- end }}
{{- with .values.namespaceSelector }}
namespaceSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.objectSelector }}
objectSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
clientConfig:
  service:
    name: {{ .name }}
    namespace: {{ .root.Release.Namespace }}
    path: /
  {{- with .certificate.ca }}
  caBundle: {{ b64enc . }}
  {{- end }}
{{- end -}}

{{- /* The Service in front of a webhook. Takes root, component, name and port (the name of the container's). */ -}}
{{- define "linkerd.webhook.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "linkerd.labels" . | nindent 4 }}
  annotations:
    {{- include "linkerd.annotations" .root | nindent 4 }}
    # TLS of the API server, not of the mesh.
    config.linkerd.io/opaque-ports: "443"
spec:
  selector:
    linkerd.io/control-plane-component: {{ .component }}
  ports:
    - name: {{ .port }}
      port: 443
      targetPort: {{ .port }}
{{- end -}}
