package main

import (
	"strings"
	"testing"
)

// What is missing is said at once, and what to do.
func TestTheCommandSaysHowToReachACluster(t *testing.T) {
	for _, name := range []string{"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG"} {
		t.Setenv(name, "")
	}
	if err := run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "use --kubeconfig or $KUBECONFIG, or run in a pod") {
		t.Errorf("err = %v", err)
	}
}
