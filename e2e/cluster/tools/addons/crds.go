//go:build never

// Keeps the Gateway API module in go.mod and go.sum: only the YAML files of its folder config/crd are used.
package addons

import _ "sigs.k8s.io/gateway-api/pkg/consts"
