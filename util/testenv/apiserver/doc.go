// Package apiserver runs tests against a real Kubernetes API server: etcd and
// kube-apiserver as processes of the test, on the loopback interface. It is package
// kubecluster for a testing.T.
//
// The binaries are looked for where controller-runtime's envtest looks for them:
// in the directory that KUBEBUILDER_ASSETS names. This builds them, once:
//
//	export KUBEBUILDER_ASSETS=$(testdata/kubernetes/build etcd kube-apiserver)
//	go test ./volume/objects/cluster
//
// Where the variable is not set, [Run] logs that its test was not run, and the
// test passes; where it is set, the test must run.
//
// # What is served
//
// The server authorizes as clusters do, by node and by RBAC, and restricts nodes
// to what concerns them (NodeRestriction). [Server.Kubeconfig] makes any user.
// Neither controllers nor a scheduler run without [Config.Controllers]: namespaces have
// no service account, whose admission is off, a deleted namespace stays, dependents of
// deleted objects stay, and claims are bound by what the test starts. Tests share a
// server only within one Run.
//
// envtest itself is not used: it leaves its processes behind when a test is
// killed, and who requires it has it decide his controller-runtime's version.
package apiserver
