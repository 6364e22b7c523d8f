package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/volume/containerenv"
	"github.com/podvol/podvol/volume/containermounts"
)

// processes runs containers as processes of this machine.
type processes struct {
	dir     string // where each pod has a directory for its containers' output
	hold    bool   // nothing is run at all
	address string // of every pod
	events  record.EventRecorder
	left    *leftovers
	// firstPause is that before the first restart of a container.
	firstPause time.Duration
}

// check refuses pods that would not be what they ask for.
func (r *processes) check(pod *v1.Pod) error {
	if r.hold {
		return nil
	}
	refuse := func(what string) error {
		return fmt.Errorf("pod %s/%s cannot run as processes of this node: %s", pod.Namespace, pod.Name, what)
	}
	if len(pod.Spec.InitContainers) > 0 {
		return refuse("it has init containers")
	}
	for i := range pod.Spec.Containers {
		switch c := &pod.Spec.Containers[i]; {
		case len(c.Command) == 0:
			return refuse(fmt.Sprintf("container %s has no command of its own, and images are not looked at", c.Name))
		case len(c.VolumeDevices) > 0:
			return refuse(fmt.Sprintf("container %s wants a raw device", c.Name))
		case mustNotBeRoot(pod, c) && idsOf(pod, c).UID == 0:
			return refuse(fmt.Sprintf("container %s must not run as root, and says as whom instead (runAsUser) in vain or not at all", c.Name))
		}
	}
	return nil
}

// start starts a container in mount and process namespaces of its own. The
// machine's root is its root; its volumes lie over that, and their files may belong
// to groups.
func (r *processes) start(ctx context.Context, pod *v1.Pod, c *v1.Container, env *containerenv.Environment, mounts []containermounts.Mount, groups []int64) (process, error) {
	if r.hold {
		return newHeld(ctx), nil
	}
	output, err := r.output(pod, c)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	config := sandbox.Config{
		Args: env.Expand(slices.Concat(c.Command, c.Args)), Env: append(defaults(env), env.List()...), Dir: cmp.Or(c.WorkingDir, "/"),
		Stdout: output, Stderr: output, PIDNamespace: true, Credential: idsOf(pod, c, groups...),
	}
	if s := c.SecurityContext; s != nil && s.AllowPrivilegeEscalation != nil {
		config.NoNewPrivileges = !*s.AllowPrivilegeEscalation
	}
	for _, m := range mounts {
		config.Mounts = append(config.Mounts, sandbox.Mount{
			Volume: m.Volume, Source: m.Source, Destination: m.Destination, File: m.File,
			ReadOnly: m.ReadOnly, RecursiveReadOnly: m.RecursiveReadOnly, Propagation: m.Propagation,
			NoExec: slices.Contains(m.BindMountOptions, "noexec"), NoSUID: slices.Contains(m.BindMountOptions, "nosuid"), NoDev: slices.Contains(m.BindMountOptions, "nodev"),
		})
	}
	p, err := sandbox.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := r.left.note(pod.UID, c.Name, p.PID()); err != nil {
		_ = p.Signal(os.Kill)
		_, _ = p.Wait()
		return nil, err
	}
	return p, nil
}

// mountOptions are what podvol must know of a container that is started here.
func mountOptions(env *containerenv.Environment) containermounts.Options {
	return containermounts.Options{Env: env.Map(), Runtime: containermounts.RuntimeFeatures{RecursiveReadOnly: true, BindMountOptions: true}}
}

// output is the file that takes what the container prints.
func (r *processes) output(pod *v1.Pod, c *v1.Container) (*os.File, error) {
	dir := filepath.Join(r.dir, string(pod.UID))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, c.Name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

func defaults(env *containerenv.Environment) (list []string) {
	for _, d := range [][2]string{{"PATH", sandbox.DefaultPath}, {"HOME", "/"}} {
		if _, set := env.Lookup(d[0]); !set {
			list = append(list, d[0]+"="+d[1])
		}
	}
	return list
}

// idsOf returns the ids that the security contexts ask for, the container's before
// the pod's, and besides them these groups; without any, those of this process.
func idsOf(pod *v1.Pod, c *v1.Container, groups ...int64) *sandbox.Credential {
	ofPod, own := pod.Spec.SecurityContext, c.SecurityContext
	if ofPod == nil {
		ofPod = &v1.PodSecurityContext{}
	}
	if own == nil {
		own = &v1.SecurityContext{}
	}
	uid, gid := cmp.Or(own.RunAsUser, ofPod.RunAsUser), cmp.Or(own.RunAsGroup, ofPod.RunAsGroup)
	ids := &sandbox.Credential{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	if uid != nil {
		ids.UID, ids.GID = uint32(*uid), 0
	}
	if gid != nil {
		ids.GID = uint32(*gid)
	}
	groups = slices.Concat(groups, ofPod.SupplementalGroups)
	if ofPod.FSGroup != nil {
		groups = append(groups, *ofPod.FSGroup)
	}
	for _, g := range groups {
		ids.Groups = append(ids.Groups, uint32(g))
	}
	ids.KeepGroups = uid == nil && len(groups) == 0
	return ids
}

func mustNotBeRoot(pod *v1.Pod, c *v1.Container) bool {
	if s := c.SecurityContext; s != nil && s.RunAsNonRoot != nil {
		return *s.RunAsNonRoot
	}
	s := pod.Spec.SecurityContext
	return s != nil && s.RunAsNonRoot != nil && *s.RunAsNonRoot
}

// held is a container that is said to run.
type held struct {
	done chan struct{}
	end  func()
}

func newHeld(ctx context.Context) *held {
	done := make(chan struct{})
	end := sync.OnceFunc(func() { close(done) })
	context.AfterFunc(ctx, end)
	return &held{done, end}
}

func (h *held) Signal(os.Signal) error { h.end(); return nil }
func (h *held) Wait() (int, error)     { <-h.done; return 0, nil }
func (h *held) PID() int               { return 0 }
