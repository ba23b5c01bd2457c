{{- /*
A Deployment of the control plane. Takes root, component, container (its YAML), ports (those of the pod, comma separated), opaque
(the webhooks among them; may be empty), volumes (YAML of a list; may be empty), podAnnotations, and sidecar: whether the proxy may
be an init container.
*/ -}}
{{- define "linkerd.deployment" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
{{- $name := printf "linkerd-%s" .component -}}
{{- $sidecar := and .sidecar $v.proxy.nativeSidecar -}}
{{- $proxy := include "linkerd.proxy" (dict "root" $root "component" .component "ports" .ports "opaque" .opaque "sidecar" $sidecar) -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "linkerd.labels" . | nindent 4 }}
    app.kubernetes.io/name: {{ .component }}
    app.kubernetes.io/version: {{ include "linkerd.version" $root | quote }}
  annotations:
    {{- include "linkerd.annotations" $root | nindent 4 }}
spec:
  replicas: {{ int64 $v.controllerReplicas }}
  revisionHistoryLimit: {{ int64 $v.revisionHistoryLimit }}
  {{- with $v.deploymentStrategy }}
  strategy:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  selector:
    matchLabels:
      linkerd.io/control-plane-component: {{ .component }}
      linkerd.io/control-plane-ns: {{ $root.Release.Namespace }}
      linkerd.io/proxy-deployment: {{ $name }}
  template:
    metadata:
      labels:
        {{- include "linkerd.labels" . | nindent 8 }}
        linkerd.io/workload-ns: {{ $root.Release.Namespace }}
        linkerd.io/proxy-deployment: {{ $name }}
        {{- with $v.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        {{- include "linkerd.annotations" $root | nindent 8 }}
        linkerd.io/proxy-version: {{ $v.proxy.image.version | default $root.Chart.AppVersion | quote }}
        {{- if and (not $v.identity.externalCA) $v.identityTrustAnchorsPEM }}
        linkerd.io/trust-root-sha256: {{ trim $v.identityTrustAnchorsPEM | sha256sum }}
        {{- end }}
        # Whatever the mesh's default is: proxies have no certificate before they reach the identity service, and the API server
        # and the kubelet have none at all.
        config.linkerd.io/default-inbound-policy: all-unauthenticated
        {{- with .opaque }}
        config.linkerd.io/opaque-ports: {{ . | quote }}
        {{- end }}
        # The emptyDir volumes hold nothing that is missed.
        cluster-autoscaler.kubernetes.io/safe-to-evict: "true"
        {{- with $v.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with .podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ $name }}
      # Only the controller gets the token of the API server, by the volume kube-api-access; the proxy does not.
      automountServiceAccountToken: false
      securityContext:
        seccompProfile:
          type: RuntimeDefault
      {{- with $v.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $v.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      {{- if or $v.enablePodAntiAffinity $v.nodeAffinity }}
      affinity:
        {{- with $v.nodeAffinity }}
        nodeAffinity:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- if $v.enablePodAntiAffinity }}
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: topology.kubernetes.io/zone
                labelSelector:
                  matchLabels:
                    linkerd.io/control-plane-component: {{ .component }}
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  linkerd.io/control-plane-component: {{ .component }}
        {{- end }}
      {{- end }}
      initContainers:
        - {{ include "linkerd.network" $root | nindent 10 | trim }}
        {{- if $sidecar }}
        - {{ $proxy | nindent 10 | trim }}
        {{- end }}
      containers:
        - {{ .container | nindent 10 | trim }}
          imagePullPolicy: {{ $v.imagePullPolicy }}
          image: {{ include "linkerd.controllerImage" $root }}
          # The API server and proxies may still open connections for a moment after the pod has begun to end.
          lifecycle:
            preStop:
              sleep:
                seconds: 5
          {{- include "linkerd.resources" (get $v (printf "%sResources" (camelcase .component | untitle)) | default dict) | indent 10 }}
          securityContext:
            {{- include "linkerd.securityContext" (dict "uid" $v.controllerUID "gid" $v.controllerGID) | nindent 12 }}
          terminationMessagePolicy: FallbackToLogsOnError
        {{- if not $sidecar }}
        - {{ $proxy | nindent 10 | trim }}
        {{- end }}
      volumes:
        {{- with .volumes }}
        {{- . | nindent 8 }}
        {{- end }}
        - name: kube-api-access
          projected:
            sources:
              - serviceAccountToken:
                  path: token
                  expirationSeconds: 3607
              - configMap:
                  name: kube-root-ca.crt
                  items:
                    - key: ca.crt
                      path: ca.crt
              - downwardAPI:
                  items:
                    - path: namespace
                      fieldRef:
                        fieldPath: metadata.namespace
        {{- if not $v.cniEnabled }}
        - name: linkerd-proxy-init-xtables-lock
          emptyDir: {}
        {{- end }}
        - name: linkerd-identity-end-entity
          emptyDir:
            medium: Memory
        - name: linkerd-identity-token
          projected:
            sources:
              - serviceAccountToken:
                  audience: identity.l5d.io
                  expirationSeconds: 86400
                  path: linkerd-identity-token
{{- if $v.enablePodDisruptionBudget }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "linkerd.labels" . | nindent 4 }}
  annotations:
    {{- include "linkerd.annotations" $root | nindent 4 }}
spec:
  maxUnavailable: {{ $v.controller.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      linkerd.io/control-plane-component: {{ .component }}
{{- end }}
{{- end -}}
