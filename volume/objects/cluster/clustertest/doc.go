// Package clustertest is a Kubernetes API in memory, for tests of code that uses
// client-go. A [Server] keeps objects as the API does. A [Transport] to it works
// in virtual time (testing/synctest). Its calls can fail, hang, and lose their
// answers.
//
// In virtual time k8s.io/apimachinery's runtime.ErrorHandlers must be nil: one of
// them pauses by a clock that virtual time turns back.
package clustertest
