package csitest

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/podvol/podvol/util/fault"
)

// Call is a call that the driver received.
type Call struct {
	// Method is the call's name, such as "NodeStageVolume".
	Method string
	// Volume is the volume's id; empty: the call is of none, or creates one.
	Volume string
	// Path is the staging path of NodeStageVolume and NodeUnstageVolume, the target
	// path of NodePublishVolume and NodeUnpublishVolume, and the volume path of
	// other calls.
	Path string
	// Request is the whole request, such as a *csi.NodeStageVolumeRequest. It holds
	// secrets. It must not be changed.
	Request proto.Message
}

// String has no secrets.
func (c Call) String() string {
	text := c.Method
	if c.Volume != "" {
		text += " " + c.Volume
	}
	if c.Path != "" {
		text += " at " + c.Path
	}
	return text
}

// Fault is an injected fault. Its fields keep their meaning from one minor version to
// the next. Err should be of package status; another error is Unknown. A hanging call
// ends when the caller's deadline is over or the driver is killed. Hook may call
// [Driver.Kill].
type Fault = fault.Fault[Call]

// Method selects calls by their names, for [Fault]'s Match.
func Method(names ...string) func(Call) bool {
	return func(c Call) bool { return slices.Contains(names, c.Method) }
}

// Inject adds faults, and returns the function that removes just these.
func (d *Driver) Inject(faults ...Fault) (remove func()) { return d.faults.Inject(faults...) }

// Calls returns all calls, oldest first, also the failed ones. The caller owns the
// slice.
func (d *Driver) Calls() []Call { return d.faults.Calls() }

// CallsOf returns the calls with these names, oldest first.
func (d *Driver) CallsOf(names ...string) []Call {
	return slices.DeleteFunc(d.Calls(), func(c Call) bool { return !slices.Contains(names, c.Method) })
}

// ResetCalls empties the list of calls.
func (d *Driver) ResetCalls() { d.faults.ResetCalls() }

// Violations returns the rules of the specification that callers broke, in the order
// of the calls: two calls at once for a volume, a volume that was published before it
// was staged, or not staged anew after a call to unstage it, whatever that answered; one that
// was unstaged or detached while published, attached to a second node, or deleted while in use.
func (d *Driver) Violations() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.broken)
}

// violated notes a broken rule, and returns the answer to the call.
func (d *Driver) violated(code codes.Code, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.config.has(InternalWhileGoingOn) {
		d.broken = append(d.broken, text)
	}
	return status.Error(code, text)
}

// runningCall is a call that has not returned.
type runningCall struct {
	call   Call
	gaveUp <-chan struct{} // its caller
	from   *caller         // nil: unknown
	dead   <-chan struct{} // its server
	ended  chan struct{}
}

// intercept is the way of every call to the services of one server.
func (d *Driver) intercept(s *server) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return d.receive(ctx, s, callOf(path.Base(info.FullMethod), request), func(ctx context.Context) (any, error) { return handler(ctx, request) })
	}
}

func (d *Driver) receive(ctx context.Context, s *server, call Call, work func(context.Context) (any, error)) (any, error) {
	d.busy.Add(1)
	defer d.busy.Add(-1)
	leave, err := d.enter(ctx, s, call)
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := d.checkStaging(call); err != nil {
		return nil, err
	}
	ctx, end := d.enduring(ctx, s)
	defer end()
	var response any
	err = d.faults.Do(ctx, call, func() (err error) {
		if s.isDead() { // a killed process does nothing more
			return status.Error(codes.Unavailable, "the driver was killed")
		}
		response, err = d.handle(ctx, call, work)
		return err
	})
	if err != nil {
		return nil, asStatus(err)
	}
	return response, nil
}

// staging is where a node has a volume staged.
type staging struct{ volume, path string }

// checkStaging refuses to publish what is being unstaged, or what may be unstaged, whatever the
// call for that answered.
func (d *Driver) checkStaging(call Call) error {
	r, ok := call.Request.(interface{ GetStagingTargetPath() string })
	if !ok {
		return nil
	}
	at := staging{call.Volume, r.GetStagingTargetPath()}
	d.mu.Lock()
	unstaging := d.unstaging[at]
	switch call.Method {
	case "NodeUnstageVolume":
		d.unstaging[at] = true
	case "NodeStageVolume":
		delete(d.unstaging, at)
	}
	d.mu.Unlock()
	if unstaging && call.Method == "NodePublishVolume" {
		return d.violated(codes.FailedPrecondition, "%s after NodeUnstageVolume, and not staged since", call)
	}
	return nil
}

// enter waits for a call for the same volume whose caller has given up, and refuses to
// run beside one whose caller still waits.
func (d *Driver) enter(ctx context.Context, s *server, call Call) (leave func(), err error) {
	if call.Volume == "" {
		return func() {}, nil
	}
	mine := &runningCall{call: call, gaveUp: ctx.Done(), from: callerOf(ctx), dead: s.dead, ended: make(chan struct{})}
	for {
		// The server starts calls in any order, so one that was given up may come after the next one.
		if ctx.Err() != nil {
			return nil, asStatus(context.Cause(ctx))
		}
		d.mu.Lock()
		other := d.running[call.Volume]
		if other == nil {
			d.running[call.Volume] = mine
			d.mu.Unlock()
			return func() { d.leave(call.Volume, mine) }, nil
		}
		d.mu.Unlock()
		select {
		case <-other.gaveUp:
		case <-other.dead:
		default:
			if other.from.isGone() { // which the call's context does not say at once
				break
			}
			return nil, d.violated(codes.Aborted, "%s while %s had not returned", call, other.call)
		}
		select {
		case <-other.ended:
		case <-ctx.Done():
			return nil, asStatus(context.Cause(ctx))
		}
	}
}

func (d *Driver) leave(volume string, mine *runningCall) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.running, volume)
	close(mine.ended)
}

func asStatus(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return err
}

// callOf reads the fields that requests have in common by their getters.
func callOf(method string, request any) Call {
	c := Call{Method: method}
	c.Request, _ = request.(proto.Message)
	if r, ok := request.(interface{ GetVolumeId() string }); ok {
		c.Volume = r.GetVolumeId()
	}
	switch r := request.(type) {
	case interface{ GetTargetPath() string }:
		c.Path = r.GetTargetPath()
	case interface{ GetVolumePath() string }:
		c.Path = r.GetVolumePath()
	case interface{ GetStagingTargetPath() string }:
		c.Path = r.GetStagingTargetPath()
	}
	return c
}
