package podlife

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
)

// probe begins to ask the probes of a run, until ctx ends. A container without a startup
// probe has started at once, and one without a readiness probe is ready when it has.
func (r *run) probe(ctx context.Context, all *sync.WaitGroup) {
	r.life.mu.Lock()
	started := r.status.Started != nil && *r.status.Started
	r.life.mu.Unlock()
	up := make(chan struct{})
	isUp := func() {
		r.set(func(s *v1.ContainerStatus) { s.Started = new(true); s.Ready = s.Ready || r.spec.ReadinessProbe == nil })
		r.start()
		close(up)
	}
	if p := r.spec.StartupProbe; p == nil || started {
		isUp()
	} else {
		all.Go(func() {
			asking, stop := context.WithCancel(ctx)
			defer stop()
			r.ask(asking, "Startup", p, func(well bool) {
				if well {
					isUp()
					stop()
					return
				}
				r.unwell("startup", p)
			})
		})
	}
	after := func(p *v1.Probe, name string, is func(well bool)) {
		if p == nil {
			return
		}
		all.Go(func() {
			select {
			case <-up:
				r.ask(ctx, name, p, is)
			case <-ctx.Done():
			}
		})
	}
	after(r.spec.LivenessProbe, "Liveness", func(well bool) {
		if !well {
			r.unwell("liveness", r.spec.LivenessProbe)
		}
	})
	after(r.spec.ReadinessProbe, "Readiness", func(well bool) {
		r.set(func(s *v1.ContainerStatus) { s.Ready = well })
	})
}

// unwell has the container killed, once.
func (r *run) unwell(what string, p *v1.Probe) {
	select {
	case r.kill <- reason{fmt.Sprintf("Container %s failed %s probe, will be restarted", r.spec.Name, what), p.TerminationGracePeriodSeconds}:
	default:
	}
}

// ask asks a probe every period, and tells is when its thresholds say that the answer has
// changed, until ctx ends.
func (r *run) ask(ctx context.Context, name string, p *v1.Probe, is func(well bool)) {
	period := time.Duration(max(1, p.PeriodSeconds)) * time.Second
	next := r.it.Info().Started.Add(time.Duration(p.InitialDelaySeconds) * time.Second)
	if now := time.Now(); next.Before(now) {
		next = now
	}
	var last, told *bool
	row := int32(0)
	for {
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		next = time.Now().Add(period)
		err := r.probeOnce(ctx, p)
		if ctx.Err() != nil {
			return
		}
		well := err == nil
		if !well {
			r.life.pods.Events.Eventf(r.pod, v1.EventTypeWarning, "Unhealthy", "%s probe failed: %v", name, err)
		}
		if last == nil || *last != well {
			row = 0
		}
		last = &well
		row++
		threshold := max(1, p.FailureThreshold)
		if well {
			threshold = max(1, p.SuccessThreshold)
		}
		if row >= threshold && (told == nil || *told != well || !well) {
			told = &well
			is(well)
		}
	}
}

// probeOnce asks once. The error says what is wrong.
func (r *run) probeOnce(ctx context.Context, p *v1.Probe) error {
	timeout := time.Duration(max(1, p.TimeoutSeconds)) * time.Second
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch h := p.ProbeHandler; {
	case h.Exec != nil:
		return r.exec(asking, h.Exec.Command, timeout)
	case h.HTTPGet != nil:
		return r.get(asking, h.HTTPGet, "kube-probe")
	case h.TCPSocket != nil:
		return r.dial(asking, h.TCPSocket.Host, h.TCPSocket.Port)
	case h.GRPC != nil:
		return r.health(asking, h.GRPC)
	}
	return nil
}
