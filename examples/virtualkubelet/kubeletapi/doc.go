// Package kubeletapi serves a kubelet's endpoints, by which kubectl logs, exec, attach and
// port-forward work: the API server comes to them. Logs are read from the files that the
// container runtime writes. The others are handed on to the runtime's own server, as the
// kubelet does.
//
// Callers show a client certificate of the cluster's authority, and the API server is asked
// what they may do (SubjectAccessReview), with the verbs and subresources of a kubelet:
// nodes/log, nodes/stats, nodes/metrics, and nodes/proxy for all others.
package kubeletapi
