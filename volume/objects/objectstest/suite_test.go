package objectstest_test

import (
	"errors"
	"testing"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

func TestMain(m *testing.M) { noleak.Main(m) }

func TestSuiteOnTheStore(t *testing.T) {
	objectstest.Suite(t, func(*testing.T) objectstest.Fixture {
		store := objects.NewStore()
		return objectstest.Fixture{Source: store, Lister: store, Writer: store, Namespaces: [2]string{"ops", "dev"}}
	})
}

// A client is behind the store, and its calls can fail.
func TestSuiteOnAClient(t *testing.T) {
	objectstest.Suite(t, func(t *testing.T) objectstest.Fixture {
		c := objectstest.NewClient(objects.NewStore())
		t.Cleanup(c.Close)
		return objectstest.Fixture{Source: c, Lister: c, Writer: c, Namespaces: [2]string{"ops", "dev"},
			Break: func(*testing.T) (restore func()) {
				return c.Inject(fault.Fault[objectstest.Call]{Err: errors.New("broken")})
			}}
	})
}
