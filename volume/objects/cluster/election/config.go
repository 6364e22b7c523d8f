package election

import (
	"cmp"
	"log/slog"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/podvol/podvol/volume"
)

// Config describes a campaign for a lease. Its times have the defaults of
// Kubernetes' components.
type Config struct {
	// Client is the API that keeps the lease, such as kubernetes.Interface's
	// CoordinationV1(). It needs to get, create and update leases. Other requests
	// of the process should not slow it down by a shared limit.
	Client coordinationv1.LeasesGetter
	// Namespace and Name are the lease's. The lease is made if it does not exist.
	Namespace, Name string
	// Identity is the name of this holder for people; "": the host's name. A
	// suffix makes it unique.
	Identity string
	// LeaseDuration is how long other replicas wait after they have last seen a
	// renewal; whole seconds; 0: 15 s.
	LeaseDuration time.Duration
	// RenewDeadline is the time from the last renewal to the end of lead's
	// context; 0: 10 s. It must be shorter than LeaseDuration.
	RenewDeadline time.Duration
	// RetryPeriod is the pause between renewals, and between the reads of waiting
	// replicas; at least a second; 0: 2 s. RenewDeadline must be longer by more
	// than a fifth.
	RetryPeriod time.Duration
	// Grace is how long lead may take to return after leadership was lost. 0:
	// LeaseDuration without RenewDeadline, after which another replica may lead,
	// and without a fifth of that, for the process to end. RenewDeadline and
	// Grace together must not be longer than LeaseDuration.
	Grace time.Duration
	// Drain is how long lead may take to return after Run's context has ended.
	// Meanwhile the lease is renewed. 0: 25 s, because the kubelet kills a pod
	// after 30.
	Drain time.Duration
	// Health receives the state of the campaign; nil: it is dropped.
	Health *Health
	// Events receives the events about the leader; nil: they are dropped.
	Events resourcelock.EventRecorder
	// Logger receives the changes of the leader and their reasons; nil: they are
	// dropped.
	Logger *slog.Logger

	wall func() time.Time // nil: the machine's clock
}

func complete(c Config) (Config, error) {
	c.LeaseDuration = cmp.Or(c.LeaseDuration, 15*time.Second)
	c.RenewDeadline = cmp.Or(c.RenewDeadline, 10*time.Second)
	c.RetryPeriod = cmp.Or(c.RetryPeriod, 2*time.Second)
	c.Grace = cmp.Or(c.Grace, (c.LeaseDuration-c.RenewDeadline)*4/5)
	c.Drain = cmp.Or(c.Drain, 25*time.Second)
	if c.Health == nil {
		c.Health = new(Health)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.wall == nil {
		c.wall = time.Now
	}
	switch {
	case c.Client == nil:
		return c, volume.Invalid("client", "is missing")
	case c.Namespace == "" || c.Name == "":
		return c, volume.Invalid("name", "the lease needs a namespace and a name, it has %q and %q", c.Namespace, c.Name)
	case c.RetryPeriod < time.Second:
		return c, volume.Invalid("retryPeriod", "%s is too short: a lease tells renewals apart by the second", c.RetryPeriod)
	case c.LeaseDuration%time.Second != 0:
		return c, volume.Invalid("leaseDuration", "%s is not in whole seconds, as a lease keeps it", c.LeaseDuration)
	case c.LeaseDuration <= c.RenewDeadline:
		return c, volume.Invalid("leaseDuration", "%s is not longer than the renew deadline, %s", c.LeaseDuration, c.RenewDeadline)
	case c.Grace < 0 || c.Drain < 0:
		return c, volume.Invalid("grace", "times to return must not be negative; they are %s, and %s for draining", c.Grace, c.Drain)
	case c.RenewDeadline+c.Grace > c.LeaseDuration:
		return c, volume.Invalid("grace", "%s after the renew deadline, %s, another replica may lead already: the lease lasts %s", c.Grace, c.RenewDeadline, c.LeaseDuration)
	case 5*c.RenewDeadline <= 6*c.RetryPeriod:
		return c, volume.Invalid("renewDeadline", "%s is not longer than 1.2 times the retry period, %s", c.RenewDeadline, c.RetryPeriod)
	}
	return c, c.identify()
}

func (c *Config) identify() (err error) {
	if c.Identity == "" {
		if c.Identity, err = os.Hostname(); err != nil {
			return err
		}
	}
	c.Identity += "_" + string(uuid.NewUUID())
	return nil
}
