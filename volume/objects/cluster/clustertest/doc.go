// Package clustertest is a Kubernetes API in memory, for tests of what talks to
// one through client-go: a [Server] that keeps objects as the API does, and a
// [Transport] to it that works in virtual time (testing/synctest) and whose calls
// can fail, hang, and lose their answers.
//
// In virtual time k8s.io/apimachinery's runtime.ErrorHandlers must be nil: one of
// them pauses by a clock that virtual time turns back.
package clustertest
