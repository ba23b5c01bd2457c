{{- /* What the schema cannot say: values that need each other. Each refusal names the value and the remedy. */ -}}
{{- define "linkerd.validate" -}}
{{- $identity := .Values.identity -}}
{{- include "linkerd.validate.certificate" (list "identityTrustAnchorsPEM" .Values.identityTrustAnchorsPEM) -}}
{{- include "linkerd.validate.certificate" (list "identity.issuer.tls.crtPEM" $identity.issuer.tls.crtPEM) -}}
{{- include "linkerd.validate.key" (list "identity.issuer.tls.keyPEM" $identity.issuer.tls.keyPEM) -}}
{{- if and (not $identity.externalCA) (not (trim (.Values.identityTrustAnchorsPEM | default ""))) -}}
{{- fail "identityTrustAnchorsPEM is empty: give the root certificates (--set-file identityTrustAnchorsPEM=ca.crt), or set identity.externalCA to true if somebody else keeps the ConfigMap linkerd-identity-trust-roots" -}}
{{- end -}}
{{- $tls := $identity.issuer.tls -}}
{{- if ne (empty $tls.crtPEM) (empty $tls.keyPEM) -}}
{{- fail "identity.issuer.tls has only one of crtPEM and keyPEM: give both" -}}
{{- end -}}
{{- if and (eq $identity.issuer.scheme "linkerd.io/tls") (not $tls.crtPEM) -}}
{{- fail "identity.issuer.tls.crtPEM and keyPEM are empty: give them, or set identity.issuer.scheme to kubernetes.io/tls if somebody else keeps the Secret linkerd-identity-issuer" -}}
{{- end -}}
{{- if and .Values.proxyInit.closeWaitTimeoutSecs (not .Values.proxyInit.privileged) -}}
{{- fail "proxyInit.closeWaitTimeoutSecs writes a kernel setting: set proxyInit.privileged to true, or the value to 0" -}}
{{- end -}}
{{- $taken := dict "8080" "linkerd-identity" "8086" "linkerd-destination" "8090" "linkerd-destination" "8443" "linkerd-destination"
      "9443" "linkerd-destination" "9990" "linkerd-identity" "9995" "linkerd-proxy-injector" "9996" "linkerd-destination" -}}
{{- range $name, $port := .Values.proxy.ports -}}
{{- $port = toString (int64 $port) -}}
{{- with get $taken $port -}}
{{- fail (printf "proxy.ports.%s is %s, which %s has already: choose a port of its own" $name $port .) -}}
{{- end -}}
{{- $_ := set $taken $port (printf "proxy.ports.%s" $name) -}}
{{- end -}}
{{- range $name := list "proxyInjector" "profileValidator" "policyValidator" -}}
{{- $webhook := get $.Values $name -}}
{{- include "linkerd.validate.certificate" (list (printf "%s.crtPEM" $name) $webhook.crtPEM) -}}
{{- include "linkerd.validate.certificate" (list (printf "%s.caBundle" $name) $webhook.caBundle) -}}
{{- include "linkerd.validate.key" (list (printf "%s.keyPEM" $name) $webhook.keyPEM) -}}
{{- if ne (empty $webhook.crtPEM) (empty $webhook.keyPEM) -}}
{{- fail (printf "%s has only one of crtPEM and keyPEM: give both" $name) -}}
{{- end -}}
{{- $signers := 0 -}}
{{- range list $webhook.caBundle $webhook.injectCaFrom $webhook.injectCaFromSecret -}}
{{- if . }}{{ $signers = add1 $signers }}{{ end -}}
{{- end -}}
{{- if gt (int $signers) 1 -}}
{{- fail (printf "%s has more than one of caBundle, injectCaFrom and injectCaFromSecret: the API server takes one" $name) -}}
{{- end -}}
{{- if and (gt (int $signers) 0) (not (or $webhook.externalSecret $webhook.crtPEM $webhook.selfCertificate)) -}}
{{- fail (printf "%s says who signed the certificate, but not where the certificate is: set %s.externalSecret to true, or crtPEM and keyPEM" $name $name) -}}
{{- end -}}
{{- if and $webhook.externalSecret (eq (int $signers) 0) -}}
{{- fail (printf "%s.externalSecret is true, but nothing says who signed the certificate: set %s.caBundle, injectCaFrom or injectCaFromSecret" $name $name) -}}
{{- end -}}
{{- if and $webhook.externalSecret $webhook.crtPEM -}}
{{- fail (printf "%s.externalSecret is true and %s.crtPEM is given: choose one" $name $name) -}}
{{- end -}}
{{- end -}}
{{- $own := .Values.proxyInjector -}}
{{- if and $own.selfCertificate (or $own.externalSecret $own.crtPEM $own.caBundle $own.injectCaFrom $own.injectCaFromSecret) -}}
{{- fail "proxyInjector.selfCertificate is true: the injector makes the certificate, so leave externalSecret, crtPEM, caBundle, injectCaFrom and injectCaFromSecret unset" -}}
{{- end -}}
{{- end -}}

{{- /* Take the name of a value and the value, which is never shown. */ -}}
{{- define "linkerd.validate.certificate" -}}
{{- $name := index . 0 -}}
{{- $pem := index . 1 | default "" -}}
{{- if contains "PRIVATE KEY" $pem -}}
{{- fail (printf "%s has a private key in it: give certificates only" $name) -}}
{{- end -}}
{{- if and (trim $pem) (not (contains "-----BEGIN CERTIFICATE-----" $pem)) -}}
{{- fail (printf "%s is no certificate in PEM" $name) -}}
{{- end -}}
{{- end -}}

{{- define "linkerd.validate.key" -}}
{{- $pem := index . 1 | default "" -}}
{{- if and (trim $pem) (not (regexMatch "-----BEGIN (EC |RSA )?PRIVATE KEY-----" $pem)) -}}
{{- fail (printf "%s is no private key in PEM, or an encrypted one" (index . 0)) -}}
{{- end -}}
{{- end -}}
