package objectstest

import (
	"context"
	"errors"
	"fmt"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

func readPromises() []promise {
	unsynced := func(f Fixture) bool { return f.Unsynced != nil }
	breaks := func(f Fixture) bool { return f.Break != nil }
	return []promise{
		{contract: MissingIsNotFound, check: checkMissing},
		{contract: EndedIsNotMissing, check: checkEnded},
		{contract: UnknownKind, check: checkUnknownKind},
		{contract: UnsyncedIsNotMissing, check: checkUnsynced, needs: unsynced, lacks: "it is always synced"},
		{contract: UnsyncedIsTold, check: checkUnsyncedIsTold, needs: unsynced, lacks: "it is always synced"},
		{contract: FailedIsNotMissing, check: checkFailed, needs: breaks, lacks: "nothing can fail"},
		{contract: LiveSeesEveryWrite, check: checkLive},
		{contract: LiveTellsMissingFailed, check: checkLiveMissing},
	}
}

func checkMissing(p *probe) error {
	_, err := p.Source.Get(p.ctx, p.configMapRef("missing"))
	missing, ok := errors.AsType[*volume.ObjectNotFoundError](err)
	if !ok || missing.Ref != p.configMapRef("missing") {
		return fmt.Errorf("got %v, want an *ObjectNotFoundError that names it", err)
	}
	if errors.Is(err, objects.ErrNotSynced) {
		return fmt.Errorf("%v is both not found and not synced", err)
	}
	return want("a missing object", err, volume.ErrNotFound)
}

func checkEnded(p *probe) error {
	created, err := create(p, p.configMap("there"))
	if err != nil {
		return err
	}
	ended, cancel := context.WithCancel(p.ctx)
	cancel()
	_, there := p.Source.Get(ended, refOf(created))
	_, missing := p.Source.Get(ended, p.configMapRef("missing"))
	return errors.Join(want("of an object", there, context.Canceled), wantUnknown("of none", missing),
		want("a deletion", p.Writer.Delete(ended, refOf(created), objects.Preconditions{}), context.Canceled))
}

func checkUnknownKind(p *probe) error {
	_, err := p.Source.Get(p.ctx, volume.NewObjectRef("Pood", p.Namespaces[0], "x"))
	return errors.Join(wantType[*objects.UnknownKindError]("get", err), wantUnknown("get", err),
		wantType[*objects.UnknownKindError]("delete", p.Writer.Delete(p.ctx, volume.NewObjectRef("Pood", p.Namespaces[0], "x"), objects.Preconditions{})))
}

func checkUnsynced(p *probe) error {
	created, err := create(p, p.configMap("there"))
	if err != nil {
		return err
	}
	source, sync := p.Unsynced(p.t)
	defer sync()
	for _, ref := range []volume.ObjectRef{refOf(created), p.configMapRef("missing")} {
		defer source.Watch(ref, func(volume.ObjectRef) {})() // some know only watched objects
	}
	_, there := source.Get(p.ctx, refOf(created))
	_, missing := source.Get(p.ctx, p.configMapRef("missing"))
	return errors.Join(want("of an object", there, objects.ErrNotSynced), wantUnknown("of an object", there),
		want("of none", missing, objects.ErrNotSynced), wantUnknown("of none", missing))
}

func checkUnsyncedIsTold(p *probe) error {
	created, err := create(p, p.configMap("there"))
	if err != nil {
		return err
	}
	source, sync := p.Unsynced(p.t)
	awaited := make(chan error, 2)
	go func() { awaited <- p.await(source, refOf(created), exists) }()
	go func() { awaited <- p.await(source, p.configMapRef("missing"), notFound) }()
	sync()
	return errors.Join(<-awaited, <-awaited)
}

func checkFailed(p *probe) error {
	created, err := create(p, p.configMap("there"))
	if err != nil {
		return err
	}
	restore := p.Break(p.t)
	_, missing := p.live().Get(p.ctx, p.configMapRef("missing"))
	_, there := p.live().Get(p.ctx, refOf(created))
	_, createErr := p.Writer.Create(p.ctx, p.configMap("new"))
	restore()
	_, afterwards := p.live().Get(p.ctx, refOf(created))
	return errors.Join(wantUnknown("of none", missing), wantUnknown("of an object", there), wantUnknown("a creation", createErr), afterwards)
}

func checkLive(p *probe) error {
	created, err := create(p, p.configMap("there"))
	if err != nil {
		return err
	}
	got, err := p.live().Get(p.ctx, refOf(created))
	if err != nil {
		return err
	}
	if got.GetUID() != created.UID || got.GetResourceVersion() != created.ResourceVersion {
		return fmt.Errorf("got %s at %s, created was %s at %s", got.GetUID(), got.GetResourceVersion(), created.UID, created.ResourceVersion)
	}
	return nil
}

func checkLiveMissing(p *probe) error {
	_, err := p.live().Get(p.ctx, p.configMapRef("missing"))
	return want("a missing object", err, volume.ErrNotFound)
}
