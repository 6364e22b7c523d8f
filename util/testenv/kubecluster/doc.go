// Package kubecluster runs Kubernetes' control plane as processes of a test: etcd and
// kube-apiserver, and with [Config.Controllers] kube-controller-manager and
// kube-scheduler, too. testdata/kubernetes/build builds the programs.
//
// The server authorizes as clusters do, by node and by RBAC, and restricts nodes to
// their own objects (NodeRestriction). Certificates are made for each run. Everything
// listens at one address, 127.0.0.1 unless [Config.Address] names another, and etcd at a
// Unix socket. All processes die with the process that started them.
//
// Tests that need one API server use package apiserver. Command e2e, below this one, runs
// Kubernetes' end-to-end tests with nodes.
package kubecluster
