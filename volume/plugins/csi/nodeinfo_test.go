package csi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// cluster is a publisher that remembers what it was told.
type cluster struct {
	mu    sync.Mutex
	fails error
	told  chan string
}

func newCluster() *cluster { return &cluster{told: make(chan string, 100)} }

func (c *cluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = err
}

func (c *cluster) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fails
}

func (c *cluster) PublishDriver(_ context.Context, d storagev1.CSINodeDriver, segments map[string]string) error {
	limit := "none"
	if d.Allocatable != nil {
		limit = fmt.Sprint(*d.Allocatable.Count)
	}
	err := c.failure()
	c.told <- fmt.Sprintf("%s is %s, keys %v of %v, limit %s: %v", d.Name, d.NodeID, d.TopologyKeys, segments, limit, err)
	return err
}

func (c *cluster) WithdrawDriver(_ context.Context, driver string) error {
	err := c.failure()
	c.told <- fmt.Sprintf("%s is gone: %v", driver, err)
	return err
}

// want takes what was told next.
func (c *cluster) want(t *testing.T, want string) {
	t.Helper()
	if got := <-c.told; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// The cluster hears of a driver before its registration counts, of its new limit, and of
// its end.
func TestClusterIsToldOfADriver(t *testing.T) {
	r, c := newRegistry(t, nil), newCluster()
	r.host.CSINode = c
	r.host.Attachments = lookUp{r.drivers, r.attachments}
	r.driver.Configure(func(c *csitest.Config) {
		c.Topology, c.MaxVolumesPerNode = map[string]string{"zone": "a", "rack": "7"}, math.MaxInt64
	})
	r.run()
	g := r.registrar("a", &csitest.Registrar{Endpoint: r.socket})
	<-r.woken
	c.want(t, fmt.Sprintf("%s is node1, keys [rack zone] of map[rack:7 zone:a], limit %d: <nil>", driverName, math.MaxInt32))
	if statuses := g.Statuses(); !slices.Equal(statuses, []string{"registered"}) {
		t.Errorf("statuses %q", statuses)
	}
	// Attaching failed for want of room: the limit is asked for at once.
	r.driver.Configure(func(c *csitest.Config) { c.MaxVolumesPerNode = -3 })
	a := &storagev1.VolumeAttachment{}
	a.Status.AttachError = &storagev1.VolumeError{Message: "full", ErrorCode: new(int32(codes.ResourceExhausted))}
	r.attachments["csi-"+sha256Hex("h1"+driverName+"node1")] = a
	if err := r.plugin.CheckAttachment(t.Context(), pvSpec()); !errors.Is(err, csi.ErrNotAttached) || !errors.Is(err, volume.ErrAttachLimitExceeded) || volume.IsUncertain(err) {
		t.Error(err)
	}
	c.want(t, driverName+" is node1, keys [rack zone] of map[rack:7 zone:a], limit none: <nil>")
	r.log.await(t, "is negative")
	// The end is told until it is heard.
	c.fail(errors.New("no answer"))
	r.must(g.Stop())
	c.want(t, driverName+" is gone: no answer")
	c.fail(nil)
	for said := ""; said != driverName+" is gone: <nil>"; said = <-c.told {
		if strings.Contains(said, " is node1") {
			t.Errorf("told %q", said)
		}
	}
}

// askedFor tells which drivers' objects are read. There are none.
type askedFor chan string

func (a askedFor) GetCSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	a <- name
	return nil, volume.ErrNotFound
}

// How often the limit is told anew is read with the registration, not only with a volume.
func TestPeriodIsReadWithTheRegistration(t *testing.T) {
	r, asked := newRegistry(t, nil), make(askedFor, 10)
	r.host.CSINode, r.host.CSIDrivers = newCluster(), asked
	r.run()
	r.registrar("a", &csitest.Registrar{Endpoint: r.socket})
	<-r.woken
	select {
	case name := <-asked:
		if name != driverName {
			t.Errorf("the object of %q was read", name)
		}
	default:
		t.Error("no object was read")
	}
}

// A driver that does not say who the node is is not registered, until it does.
func TestDriverThatDoesNotKnowTheNode(t *testing.T) {
	r, c := newRegistry(t, nil), newCluster()
	r.host.CSINode = c
	remove := r.driver.Inject(csitest.Fault{Match: csitest.Method("NodeGetInfo"), Err: status.Error(codes.Internal, "no metadata here")})
	r.run()
	g := r.registrar("a", &csitest.Registrar{Endpoint: r.socket})
	<-g.Told()
	if statuses := g.Statuses(); !strings.Contains(statuses[0], "no metadata here") {
		t.Errorf("statuses %q", statuses)
	}
	remove()
	<-r.woken
	for said := ""; !strings.HasPrefix(said, driverName+" is node1"); said = <-c.told {
		if said != "" && said != driverName+" is gone: <nil>" {
			t.Errorf("told %q", said)
		}
	}
}

// A driver that the cluster cannot be told of is not registered, and its registrar knows.
func TestDriverThatTheClusterRefuses(t *testing.T) {
	r, c := newRegistry(t, nil), newCluster()
	r.host.CSINode = c
	c.fail(errors.New("zone b is not zone a"))
	r.run()
	g := r.registrar("a", &csitest.Registrar{Endpoint: r.socket})
	<-g.Told()
	if statuses := g.Statuses(); !strings.Contains(statuses[0], "zone b is not zone a") {
		t.Errorf("statuses %q", statuses)
	}
	c.fail(nil) // it is tried again
	<-r.woken
	if drivers := r.plugin.Drivers(); len(drivers) != 1 {
		t.Errorf("drivers %v", drivers)
	}
}

// Of a driver of the configuration, the cluster is told until it hears; the driver is known
// meanwhile.
func TestClusterIsToldOfAConfiguredDriver(t *testing.T) {
	r, c := newRegistry(t, nil), newCluster()
	r.config.Drivers, r.config.Logger = map[string]string{driverName: r.socket}, slog.New(r.log)
	r.restart()
	r.host.CSINode = c
	c.fail(errors.New("no answer"))
	r.run()
	c.want(t, driverName+" is node1, keys [] of map[], limit none: no answer")
	r.must(r.setUp(pvSpec(), pod("u1"), volume.MounterArgs{}), r.tearDown(pvSpec(), "u1"))
	c.fail(nil)
	for said := ""; !strings.HasSuffix(said, ": <nil>"); {
		said = <-c.told
	}
}
