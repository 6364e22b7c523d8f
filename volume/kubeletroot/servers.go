package kubeletroot

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/eintr"
)

// maxServers is how many servers are asked at the same time, a thread each.
const maxServers = 64

// staleServers asks one mount of each server.
func (x *examination) staleServers(ctx context.Context) {
	patience := x.Patience
	if patience <= 0 {
		patience = 3 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ask := x.Ask
	if ask == nil {
		ask = statfs
	}
	type reply struct {
		of  mount.Entry
		err error
	}
	waiting := make(map[string]mount.Entry)
	replies := make(chan reply, maxServers)
	for _, e := range x.mounts {
		server := serverOf(e)
		if _, asked := waiting[server]; server == "" || asked || len(waiting) == maxServers {
			continue
		}
		waiting[server] = e
		go func() { replies <- reply{e, ask(e.Target)} }()
	}
	for len(waiting) > 0 {
		select {
		case r := <-replies:
			delete(waiting, serverOf(r.of))
			if r.err != nil && !errors.Is(r.err, unix.EACCES) {
				x.stale(r.of, r.err)
			}
		case <-ctx.Done():
			for _, e := range waiting {
				x.stale(e, fmt.Errorf("no answer within %v", patience))
			}
			return
		}
	}
}

func (x *examination) stale(e mount.Entry, err error) {
	x.find(Finding{Kind: StaleServer, Volume: serverOf(e), Path: e.Target, Err: err,
		Advice: "Bring the server back, or take the pods away that have its volumes; podvol unmount --force, or umount -f, when it will not come back."})
}

// serverOf names the file server of a mount; empty: it has none that could be stale.
func serverOf(e mount.Entry) string {
	kind, _, _ := strings.Cut(e.FSType, ".")
	switch kind {
	case "nfs", "nfs4":
		at := strings.LastIndex(e.Source, ":/")
		return e.Source[:max(at, 0)]
	case "cifs", "smb3":
		server, _, _ := strings.Cut(strings.TrimLeft(e.Source, "/"), "/")
		return server
	case "ceph", "9p", "fuse", "glusterfs":
		return fmt.Sprintf("%s %s", kind, e.Source)
	}
	return ""
}

func statfs(path string) error {
	return eintr.Do(func() error { var st unix.Statfs_t; return unix.Statfs(path, &st) })
}
