package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/podrun"
)

// newJob chooses pod and container and finds out everything that could be
// wrong, before anything is touched.
func newJob(ctx context.Context, s streams, o runOptions, set *manifest.Set, pods []*v1.Pod) (*job, error) {
	pod, err := choosePod(pods)
	if err != nil {
		return nil, err
	}
	container, err := chooseContainer(pod, o.container)
	if err != nil {
		return nil, err
	}
	program, err := podrun.Prepare(ctx, podrun.Options{
		Pod: pod, Container: container, Args: o.command, RootFS: o.rootfs, Objects: set, NodeName: set.NodeName,
		InUserNamespace: o.inside, MissingIDs: o.missingIDs,
	})
	if program == nil {
		return nil, err
	}
	if fields := program.NotHonoured; len(fields) > 0 {
		s.say("container %q asks for what podvol run does not do: %s", container.Name, strings.Join(fields, ", "))
	}
	for _, skipped := range program.Skipped {
		s.say("%s", skipped)
	}
	if errors.Is(err, podrun.ErrNoCommand) {
		return nil, usagef("say what to run after --: container %q has no command of its own (it is in its image, which podvol does not look at)", container.Name)
	}
	return &job{set: set, pod: pod, program: program}, err
}

func choosePod(pods []*v1.Pod) (*v1.Pod, error) {
	if len(pods) == 1 {
		return pods[0], nil
	}
	names := make([]string, len(pods))
	for i, p := range pods {
		names[i] = p.Namespace + "/" + p.Name
	}
	return nil, usagef("the manifests have %d pods: %s; choose one with --pod", len(pods), strings.Join(names, ", "))
}

// defaultContainer is the annotation by which a pod names its main container,
// as for kubectl exec.
const defaultContainer = "kubectl.kubernetes.io/default-container"

func chooseContainer(pod *v1.Pod, name string) (*v1.Container, error) {
	all := slices.Clone(pod.Spec.Containers)
	all = append(all, pod.Spec.InitContainers...)
	for _, e := range pod.Spec.EphemeralContainers {
		all = append(all, v1.Container(e.EphemeralContainerCommon))
	}
	if name == "" {
		name = pod.Annotations[defaultContainer]
	}
	switch {
	case len(all) == 0:
		return nil, usagef("pod %s/%s has no containers, so that there is none for a command to run in the place of; add one that mounts the volumes", pod.Namespace, pod.Name)
	case name == "" && len(pod.Spec.Containers) > 0:
		return &all[0], nil
	}
	var names []string
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
		names = append(names, all[i].Name)
	}
	if name == "" {
		return nil, usagef("pod %s/%s has no containers but init or ephemeral ones; choose one with --container: %s", pod.Namespace, pod.Name, strings.Join(names, ", "))
	}
	return nil, usagef("pod %s/%s has no container %q; it has %s", pod.Namespace, pod.Name, name, strings.Join(names, ", "))
}

func checkRootfs(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = errors.New("it is no directory")
	}
	if err != nil {
		return usagef("--rootfs %s: %w", dir, err)
	}
	return nil
}
