package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// leftScript prints what a node has of pods, a line each, by the node's root directories.
// Of the cgroups that the runtime makes by itself, only those with processes count: runc
// leaves empty ones on a busy machine. Nor does containerd's shim count, which a busy
// containerd gives up and leaves: a pod's own processes are listed by themselves.
const leftScript = `
for root in "$@"; do
  awk -v r="$root/" 'index($5, r) == 1 { print "mount " $5 }' /proc/self/mountinfo
  for dir in "$root"/pods/*; do [ ! -e "$dir" ] || echo "directory $dir"; done
done
for dir in /var/lib/podvol*/containers/* /var/log/pods/* /run/netns/*; do [ ! -e "$dir" ] || echo "directory $dir"; done
for ip in /run/cni/pods/*.*.*.*; do [ ! -e "$ip" ] || echo "address $ip"; done
ctr -n k8s.io containers ls -q | sed 's/^/container /'
find /sys/fs/cgroup -type d -path '*/kubepods/*pod*-*' | sed 's/^/cgroup /'
find /sys/fs/cgroup -type d -path '*/k8s.io/*' | while read -r dir; do ! grep -q . "$dir/cgroup.procs" || echo "cgroup $dir"; done
for dir in /proc/[0-9]*; do
  read -r name 2>/dev/null <"$dir/comm" || continue
  case $name in exe|e2e|containerd|containerd-shim|kubelet|virtualkubelet|sh|awk|sed|grep|find|ctr) ;; *) echo "process $name" ;; esac
done
exit 0
`

// left are the mounts, directories, containers, processes, cgroups and addresses of pods
// that a node has.
func (n node) left(ctx context.Context, roots ...string) ([]string, error) {
	out, err := n.tell(ctx, order{Run: append([]string{"sh", "-c", leftScript, "left"}, roots...)})
	return strings.FieldsFunc(out, func(r rune) bool { return r == '\n' }), err
}

const (
	leftWithin = 4 * time.Minute // a kubelet removes logs and containers once a minute or two
	leftEvery  = time.Second
)

// awaitNothingLeft waits until a node has nothing of any pod.
func (n node) awaitNothingLeft(ctx context.Context, roots ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, leftWithin, fmt.Errorf("not within %s", leftWithin))
	defer cancel()
	var left []string
	err := eventually(ctx, func() (done bool, err error) {
		found, err := n.left(ctx, roots...)
		if err == nil {
			left = found
		}
		return len(found) == 0, err
	})
	if err != nil && len(left) > 0 {
		return fmt.Errorf("%s has no pods, but %d things of some:\n%s\n%w", n.name(), len(left), strings.Join(left, "\n"), err)
	}
	return err
}

// eventually calls done until it returns true, or fails, or ctx ends.
func eventually(ctx context.Context, done func() (bool, error)) error {
	again := time.NewTicker(leftEvery)
	defer again.Stop()
	for {
		is, err := done()
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // which has cut it off
		}
		if is || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
		}
	}
}

// kubeletRoot is the root directory of the nodes' volumes.
const kubeletRoot = "/var/lib/kubelet"

// nothingLeft waits until no node has anything of the tests' pods.
func nothingLeft(ctx context.Context, w io.Writer, o options) error {
	for number := 1; number <= o.Nodes; number++ {
		n := node{number: number}
		if err := n.awaitNothingLeft(ctx, kubeletRoot); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s: no mount, container, directory or process of a pod is left\n", n.name())
	}
	return nil
}
