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

// Config says which lease is campaigned for, and how. The defaults of its times
// are those of Kubernetes' components.
type Config struct {
	// Client is the API that keeps the lease, such as
	// kubernetes.Interface's CoordinationV1(). It needs to get, create and update
	// leases. It should not be limited by what else the process asks for.
	Client coordinationv1.LeasesGetter
	// Namespace and Name are the lease's. It is made if it does not exist.
	Namespace, Name string
	// Identity is who holds it, for those who look at it; "": the host's name. It is
	// made unique.
	Identity string
	// LeaseDuration is how long others wait after they have seen the lease renewed
	// for the last time; whole seconds; 0: 15 s.
	LeaseDuration time.Duration
	// RenewDeadline is how long after the last renewal lead's context ends; 0: 10 s. It
	// must be shorter than LeaseDuration.
	RenewDeadline time.Duration
	// RetryPeriod is the pause between renewals, and between looks of those who
	// wait; at least a second; 0: 2 s. RenewDeadline must be longer by more than a
	// fifth.
	RetryPeriod time.Duration
	// Grace is how long lead may take to return after leadership was lost; 0:
	// LeaseDuration without RenewDeadline, after which another replica may lead, and
	// without a fifth of that, for the process to end. RenewDeadline and Grace
	// together must not be longer than LeaseDuration.
	Grace time.Duration
	// Drain is how long lead may take to return after Run's context has ended, while
	// the lease is renewed further; 0: 25 s, as the kubelet kills a pod after 30.
	Drain time.Duration
	// Health is told how the campaign goes; nil: nobody is.
	Health *Health
	// Events takes the events about who leads; nil: nobody does.
	Events resourcelock.EventRecorder
	// Logger says who leads, and why no more; nil: nobody does.
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
