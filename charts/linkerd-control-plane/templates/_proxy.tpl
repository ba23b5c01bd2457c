{{- /*
The proxy of a control-plane pod, which the injector leaves alone. It has what the injector would give it (contract 1 and 9.4),
except: its own services by localhost, trust roots from the ConfigMap, its ports and its default policy fixed.
Takes root, component, ports (those of the pod, comma separated), opaque (the webhooks among them; may be empty), and sidecar:
whether it is an init container.
Settings of the data plane that would change who may reach the control plane, or how it ends, are not applied to it.
*/ -}}
{{- define "linkerd.proxy" -}}
{{- $v := .root.Values -}}
{{- $ns := .root.Release.Namespace -}}
{{- $trust := include "linkerd.trustDomain" .root -}}
{{- $any := ternary "0.0.0.0" "[::]" $v.disableIPv6 -}}
{{- $identity := ternary "localhost." (printf "linkerd-identity-headless.%s.svc.%s." $ns $v.clusterDomain) (eq .component "identity") -}}
{{- $destination := ternary "localhost." (printf "linkerd-dst-headless.%s.svc.%s." $ns $v.clusterDomain) (eq .component "destination") -}}
{{- $policy := ternary "localhost." (printf "linkerd-policy.%s.svc.%s." $ns $v.clusterDomain) (eq .component "destination") -}}
{{- $ports := $v.proxy.ports -}}
name: linkerd-proxy
image: {{ include "linkerd.proxyImage" .root }}
imagePullPolicy: {{ include "linkerd.proxyPullPolicy" .root }}
command: [/usr/bin/weft-proxy]
env:
  - name: _pod_name
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: _pod_ns
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  - name: _pod_uid
    valueFrom:
      fieldRef:
        fieldPath: metadata.uid
  - name: _pod_ip
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  - name: _pod_nodeName
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  - name: _pod_containerName
    value: linkerd-proxy
  - name: _pod_sa
    valueFrom:
      fieldRef:
        fieldPath: spec.serviceAccountName
  - name: _l5d_ns
    value: {{ $ns | quote }}
  - name: _l5d_trustdomain
    value: {{ $trust | quote }}
  {{- with $v.proxy.runtime.workers }}
  - name: LINKERD2_PROXY_CORES
    value: {{ int64 .minimum | quote }}
  - name: LINKERD2_PROXY_CORES_MIN
    value: {{ int64 .minimum | quote }}
  {{- with .maximum }}
  - name: LINKERD2_PROXY_CORES_MAX
    value: {{ int64 . | quote }}
  {{- end }}
  {{- with .maximumCPURatio }}
  - name: LINKERD2_PROXY_CORES_MAX_RATIO
    value: {{ . | quote }}
  {{- end }}
  {{- end }}
  - name: LINKERD2_PROXY_SHUTDOWN_ENDPOINT_ENABLED
    value: "false"
  - name: LINKERD2_PROXY_LOG
    value: {{ print $v.proxy.logLevel (ternary "" ",[{headers}]=off,[{request}]=off" (eq (toString $v.proxy.logHTTPHeaders) "insecure")) | quote }}
  - name: LINKERD2_PROXY_LOG_FORMAT
    value: {{ $v.proxy.logFormat }}
  - name: LINKERD2_PROXY_DESTINATION_SVC_ADDR
    value: {{ $destination }}:8086
  - name: LINKERD2_PROXY_DESTINATION_PROFILE_NETWORKS
    value: {{ $v.clusterNetworks | quote }}
  - name: LINKERD2_PROXY_POLICY_SVC_ADDR
    value: {{ $policy }}:8090
  - name: LINKERD2_PROXY_POLICY_WORKLOAD
    value: |
      {"ns":"$(_pod_ns)", "pod":"$(_pod_name)"}
  - name: LINKERD2_PROXY_INBOUND_DEFAULT_POLICY
    value: all-unauthenticated
  - name: LINKERD2_PROXY_POLICY_CLUSTER_NETWORKS
    value: {{ $v.clusterNetworks | quote }}
  {{- with $v.proxy.control.streams }}
  - name: LINKERD2_PROXY_CONTROL_STREAM_INITIAL_TIMEOUT
    value: {{ .initialTimeout | default "" | quote }}
  - name: LINKERD2_PROXY_CONTROL_STREAM_IDLE_TIMEOUT
    value: {{ .idleTimeout | default "" | quote }}
  - name: LINKERD2_PROXY_CONTROL_STREAM_LIFETIME
    value: {{ .lifetime | default "" | quote }}
  {{- end }}
  - name: LINKERD2_PROXY_INBOUND_CONNECT_TIMEOUT
    value: {{ $v.proxy.inboundConnectTimeout }}
  - name: LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT
    value: {{ $v.proxy.outboundConnectTimeout }}
  - name: LINKERD2_PROXY_OUTBOUND_DISCOVERY_IDLE_TIMEOUT
    value: {{ $v.proxy.outboundDiscoveryCacheUnusedTimeout }}
  - name: LINKERD2_PROXY_INBOUND_DISCOVERY_IDLE_TIMEOUT
    value: {{ $v.proxy.inboundDiscoveryCacheUnusedTimeout }}
  - name: LINKERD2_PROXY_CONTROL_LISTEN_ADDR
    value: {{ printf "%s:%d" $any (int64 $ports.control) | quote }}
  - name: LINKERD2_PROXY_ADMIN_LISTEN_ADDR
    value: {{ printf "%s:%d" $any (int64 $ports.admin) | quote }}
  - name: LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR
    value: {{ printf "127.0.0.1:%d" (int64 $ports.outbound) | quote }}
  - name: LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS
    value: {{ printf "127.0.0.1:%d%s" (int64 $ports.outbound) (ternary "" (printf ",[::1]:%d" (int64 $ports.outbound)) $v.disableIPv6) | quote }}
  - name: LINKERD2_PROXY_INBOUND_LISTEN_ADDR
    value: {{ printf "%s:%d" $any (int64 $ports.inbound) | quote }}
  - name: LINKERD2_PROXY_INBOUND_IPS
    valueFrom:
      fieldRef:
        fieldPath: status.podIPs
  - name: LINKERD2_PROXY_INBOUND_PORTS
    value: {{ .ports | quote }}
  - name: LINKERD2_PROXY_DESTINATION_PROFILE_SUFFIXES
    value: svc.{{ $v.clusterDomain }}.
  - name: LINKERD2_PROXY_OUTBOUND_METRICS_HOSTNAME_LABELS
    value: {{ $v.proxy.metrics.hostnameLabels | quote }}
  {{- range list "INBOUND_ACCEPT" "OUTBOUND_CONNECT" }}
  - name: LINKERD2_PROXY_{{ . }}_KEEPALIVE
    value: 10000ms
  - name: LINKERD2_PROXY_{{ . }}_USER_TIMEOUT
    value: 30s
  {{- end }}
  {{- range $direction := list "inbound" "outbound" }}
  {{- range $scope, $protocols := get $v.proxy $direction }}
  {{- range $protocol, $params := $protocols }}
  {{- range $param, $value := $params }}
  - name: LINKERD2_PROXY_{{ list $direction $scope $protocol $param | join "_" | snakecase | upper }}
    value: {{ $value | quote }}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- end }}
  - name: LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION
    value: {{ .opaque | default $v.proxy.opaquePorts | quote }}
  - name: LINKERD2_PROXY_DESTINATION_CONTEXT
    value: |
      {"ns":"$(_pod_ns)", "nodeName":"$(_pod_nodeName)", "pod":"$(_pod_name)"}
  - name: LINKERD2_PROXY_IDENTITY_DIR
    value: /var/run/linkerd/identity/end-entity
  - name: LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS
    valueFrom:
      configMapKeyRef:
        name: linkerd-identity-trust-roots
        key: ca-bundle.crt
  - name: LINKERD2_PROXY_IDENTITY_TOKEN_FILE
    value: /var/run/secrets/tokens/linkerd-identity-token
  - name: LINKERD2_PROXY_IDENTITY_SVC_ADDR
    value: {{ $identity }}:8080
  - name: LINKERD2_PROXY_IDENTITY_LOCAL_NAME
    value: $(_pod_sa).$(_pod_ns).serviceaccount.identity.{{ $ns }}.{{ $trust }}
  - name: LINKERD2_PROXY_IDENTITY_SVC_NAME
    value: linkerd-identity.{{ $ns }}.serviceaccount.identity.{{ $ns }}.{{ $trust }}
  - name: LINKERD2_PROXY_DESTINATION_SVC_NAME
    value: linkerd-destination.{{ $ns }}.serviceaccount.identity.{{ $ns }}.{{ $trust }}
  - name: LINKERD2_PROXY_POLICY_SVC_NAME
    value: linkerd-destination.{{ $ns }}.serviceaccount.identity.{{ $ns }}.{{ $trust }}
ports:
  - name: linkerd-proxy
    containerPort: {{ int64 $ports.inbound }}
  - name: linkerd-admin
    containerPort: {{ int64 $ports.admin }}
livenessProbe:
  httpGet:
    path: /live
    port: {{ int64 $ports.admin }}
  {{- range $key, $value := $v.proxy.livenessProbe }}
  {{ $key }}: {{ int64 $value }}
  {{- end }}
readinessProbe:
  httpGet:
    path: /ready
    port: {{ int64 $ports.admin }}
  {{- range $key, $value := $v.proxy.readinessProbe }}
  {{ $key }}: {{ int64 $value }}
  {{- end }}
{{- if .sidecar }}
restartPolicy: Always
# Ready when the identity service has given a certificate, which may have to start first: longer than in a workload.
startupProbe:
  httpGet:
    path: /ready
    port: {{ int64 $ports.admin }}
  periodSeconds: 1
  failureThreshold: 135
{{- else }}
# As long as the container beside it, which is ended at the same time.
lifecycle:
  preStop:
    sleep:
      seconds: 5
{{- end }}
{{- include "linkerd.resources" (get $v (printf "%sProxyResources" (camelcase .component | untitle)) | default $v.proxy.resources) }}
securityContext:
  {{- include "linkerd.securityContext" (dict "uid" $v.proxy.uid "gid" $v.proxy.gid) | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - name: linkerd-identity-end-entity
    mountPath: /var/run/linkerd/identity/end-entity
  - name: linkerd-identity-token
    mountPath: /var/run/secrets/tokens
{{- end -}}

{{- /*
What runs before everything else in a control-plane pod: the redirection of its connections, of which those to the API server go
past the proxy; or the check that a CNI plugin has redirected them. As the injector writes it for workloads.
*/ -}}
{{- define "linkerd.network" -}}
{{- $v := .Values -}}
{{- $init := $v.proxyInit -}}
{{- $ports := $v.proxy.ports -}}
name: {{ ternary "linkerd-network-validator" "linkerd-init" $v.cniEnabled }}
image: {{ include "linkerd.proxyImage" . }}
imagePullPolicy: {{ include "linkerd.proxyPullPolicy" . }}
{{- if $v.cniEnabled }}
{{- $connect := ternary "1.1.1.1:20001" "[fd00::1]:20001" $v.disableIPv6 }}
{{- $listen := printf "%s:%d" (ternary "0.0.0.0" "[::]" $v.disableIPv6) (int64 $ports.outbound) }}
command: [/usr/bin/weft, validate-network]
args:
  - --connect-addr={{ $v.networkValidator.connectAddr | default $connect }}
  - --listen-addr={{ $v.networkValidator.listenAddr | default $listen }}
  - --timeout={{ $v.networkValidator.timeout }}
{{- include "linkerd.resources" $v.proxy.resources }}
{{- if $v.networkValidator.enableSecurityContext }}
securityContext:
  {{- include "linkerd.securityContext" (dict "uid" 65534 "gid" 65534) | nindent 2 }}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
{{- else }}
{{- $ignored := list (int64 $ports.control) (int64 $ports.admin) }}
{{- with $init.ignoreInboundPorts }}{{ $ignored = append $ignored (toString .) }}{{ end }}
{{- $program := get (dict "nft" "iptables-nft" "legacy" "iptables-legacy" "plain" "iptables") $init.iptablesMode }}
command: [/usr/bin/weft, init]
args:
  - --ipv6={{ not $v.disableIPv6 }}
  - --incoming-proxy-port={{ int64 $ports.inbound }}
  - --outgoing-proxy-port={{ int64 $ports.outbound }}
  - --proxy-uid={{ int64 $v.proxy.uid }}
  {{- if ge (int64 $v.proxy.gid) 0 }}
  - --proxy-gid={{ int64 $v.proxy.gid }}
  {{- end }}
  - --inbound-ports-to-ignore={{ join "," $ignored }}
  {{- with $init.kubeAPIServerPorts }}
  - --outbound-ports-to-ignore={{ . }}
  {{- end }}
  {{- with $init.skipSubnets }}
  - --subnets-to-ignore={{ . }}
  {{- end }}
  - --firewall-bin-path={{ $program }}
  - --firewall-save-bin-path={{ $program }}-save
  {{- with $init.closeWaitTimeoutSecs }}
  - --timeout-close-wait-secs={{ int64 . }}
  {{- end }}
{{- include "linkerd.resources" $init.resources }}
{{- $root := or $init.runAsRoot (gt (int64 $init.closeWaitTimeoutSecs) 0) }}
securityContext:
  allowPrivilegeEscalation: {{ $init.privileged }}
  privileged: {{ $init.privileged }}
  {{- if not $init.privileged }}
  capabilities:
    # Redirection is a rule of the pod's network namespace.
    add: [NET_ADMIN, NET_RAW]
    drop: [ALL]
  {{- end }}
  readOnlyRootFilesystem: true
  runAsNonRoot: {{ not $root }}
  runAsUser: {{ ternary 0 (int64 $init.runAsUser) $root }}
  runAsGroup: {{ ternary 0 (int64 $init.runAsUser) $root }}
  seccompProfile:
    type: RuntimeDefault
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - name: linkerd-proxy-init-xtables-lock
    mountPath: /run
{{- end }}
{{- end -}}
