package csitest

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Misbehaviour is a fault that a real driver has or had.
type Misbehaviour string

const (
	// UnpublishedInlineIsNotFound: the second NodeUnpublishVolume of an inline volume
	// is NotFound (csi-driver-host-path).
	UnpublishedInlineIsNotFound Misbehaviour = "unpublished-inline-is-not-found"
	// ExpandGrowsNothing: NodeExpandVolume succeeds and grows nothing
	// (csi-driver-host-path, block volumes).
	ExpandGrowsNothing Misbehaviour = "expand-grows-nothing"
	// RepublishIsUnknown: NodePublishVolume of a published volume is Unknown
	// (csi-driver-lvm).
	RepublishIsUnknown Misbehaviour = "republish-is-unknown"
	// UnpublishLeavesTarget: NodeUnpublishVolume leaves the target, and
	// NodePublishVolume fails on a target that exists (csi-driver-lvm).
	UnpublishLeavesTarget Misbehaviour = "unpublish-leaves-target"
	// StageDoesNothing: NodeStageVolume is offered and stages nothing
	// (csi-driver-lvm).
	StageDoesNothing Misbehaviour = "stage-does-nothing"
	// InternalWhileGoingOn: NodeStageVolume and NodePublishVolume answer Internal
	// while their work goes on (csi-driver-iscsi).
	InternalWhileGoingOn Misbehaviour = "internal-while-going-on"
	// NoVersion: GetPluginInfo is Unavailable (csi-driver-host-path without a version).
	NoVersion Misbehaviour = "no-version"
	// CreatesTooLittle: CreateVolume makes half of what was asked for, and says so.
	CreatesTooLittle Misbehaviour = "creates-too-little"
	// CreatesEmpty: CreateVolume says nothing of the volume that it was to copy.
	CreatesEmpty Misbehaviour = "creates-empty"
	// ShortensNames: CreateVolume looks at the first four bytes of a name only, and answers
	// with the volume of another name that begins alike.
	ShortensNames Misbehaviour = "shortens-names"
	// DetachesInUse: ControllerUnpublishVolume succeeds while the node has the volume, and the
	// node takes one that is not attached (csi-driver-host-path, unless it is told to check).
	DetachesInUse Misbehaviour = "detaches-in-use"
	// WorksOn: the work of a call does not end with the caller's deadline.
	WorksOn Misbehaviour = "works-on"
)

// Misbehaviours returns all of them.
func Misbehaviours() []Misbehaviour {
	return []Misbehaviour{UnpublishedInlineIsNotFound, ExpandGrowsNothing, RepublishIsUnknown, UnpublishLeavesTarget, StageDoesNothing, InternalWhileGoingOn, NoVersion, CreatesTooLittle, CreatesEmpty, ShortensNames, DetachesInUse, WorksOn}
}

func (c *Config) has(m Misbehaviour) bool { return slices.Contains(c.Misbehaviours, m) }

// enduring returns the context of a call's work: with [WorksOn] it ends with the driver
// and not with the call. end must be called after the work.
func (d *Driver) enduring(ctx context.Context, s *server) (_ context.Context, end func()) {
	c := d.Config()
	if !c.has(WorksOn) {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.goOn(func() {
		select {
		case <-s.dead:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, cancel
}

// handle does the work of a call, as the driver's misbehaviours have it.
func (d *Driver) handle(ctx context.Context, call Call, work func(context.Context) (any, error)) (any, error) {
	c := d.Config()
	if c.has(InternalWhileGoingOn) && Method("NodeStageVolume", "NodePublishVolume")(call) {
		ctx = context.WithoutCancel(ctx)
		d.goOn(func() { _, _ = work(ctx) })
		return nil, status.Error(codes.Internal, "no answer after 3 s")
	}
	return work(ctx)
}
