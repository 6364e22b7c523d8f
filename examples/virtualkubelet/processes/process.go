package processes

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/volume/containerenv"
)

// start starts a container in mount and process namespaces of its own. The
// machine's root is its root; its volumes lie over that, and their files may belong
// to groups.
func (r *Runtime) start(l podlife.Launch) (*sandbox.Process, error) {
	pod, c, env := l.Pod, l.Spec, l.Env
	output, err := r.output(pod, c)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	config := sandbox.Config{
		Args: env.Expand(slices.Concat(c.Command, c.Args)), Env: append(defaults(env), env.List()...), Dir: cmp.Or(c.WorkingDir, "/"),
		Stdout: output, Stderr: output, PIDNamespace: true, Credential: idsOf(pod, c, l.Groups...),
	}
	if s := c.SecurityContext; s != nil && s.AllowPrivilegeEscalation != nil {
		config.NoNewPrivileges = !*s.AllowPrivilegeEscalation
	}
	for _, m := range l.Mounts {
		config.Mounts = append(config.Mounts, sandbox.Mount{
			Volume: m.Volume, Source: m.Source, Destination: m.Destination, File: m.File,
			ReadOnly: m.ReadOnly, RecursiveReadOnly: m.RecursiveReadOnly, Propagation: m.Propagation,
			NoExec: slices.Contains(m.BindMountOptions, "noexec"), NoSUID: slices.Contains(m.BindMountOptions, "nosuid"), NoDev: slices.Contains(m.BindMountOptions, "nodev"),
		})
	}
	p, err := sandbox.Start(r.ctx, config)
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

// output is the file that takes what the container prints.
func (r *Runtime) output(pod *v1.Pod, c *v1.Container) (*os.File, error) {
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
