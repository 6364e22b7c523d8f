package persistentvolume_test

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/podvol/podvol/util/testenv/testtool"
)

// Client-go logs each outage of an API, and pauses after some by a clock that virtual
// time turns back.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	klog.SetLogger(logr.Discard())
	testtool.Shorten()
	os.Exit(m.Run())
}
