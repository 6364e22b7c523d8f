// Package nodehttp serves the state of a node's volumes over HTTP. It has metrics
// under the kubelet's names, so that dashboards for kubelets work, and the rows
// of the manager's Explain. It needs the Prometheus client library, and so lies
// in the module of the examples.
package nodehttp
