package kubeletapi

import (
	"fmt"
	"net/http"
	"strings"

	v1 "k8s.io/api/core/v1"
)

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	_, id, err := s.running(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	to, err := s.Runtime.ExecURL(r.Context(), id, r.URL.Query()["command"], streamsOf(r, asks(r, "tty")))
	s.handOn(w, r, to, err)
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	pod, id, err := s.running(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	to, err := s.Runtime.AttachURL(r.Context(), id, streamsOf(r, hasTTY(pod, r.PathValue("container"))))
	s.handOn(w, r, to, err)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	pod, err := s.find(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	to, err := s.Runtime.PortForwardURL(r.Context(), pod.UID)
	s.handOn(w, r, to, err)
}

// running returns the runtime's ID of a container that runs.
func (s *Server) running(r *http.Request) (*v1.Pod, string, error) {
	pod, err := s.find(r)
	if err != nil {
		return nil, "", err
	}
	status, err := statusOf(pod, r.PathValue("container"))
	if err != nil {
		return nil, "", err
	}
	_, id, found := strings.Cut(status.ContainerID, "://")
	if !found || status.State.Running == nil {
		return nil, "", fmt.Errorf("container %s of pod %s/%s does not run", status.Name, pod.Namespace, pod.Name)
	}
	return pod, id, nil
}

// asks reports whether a request wants a stream.
func asks(r *http.Request, name string) bool {
	value := r.URL.Query().Get(name)
	return value == "1" || value == "true"
}

// streamsOf returns what a request asks for. A terminal has one output. Whether an
// attached container has one is decided by the container.
func streamsOf(r *http.Request, tty bool) Streams {
	return Streams{In: asks(r, "input"), Out: asks(r, "output"), Err: asks(r, "error") && !tty, TTY: tty}
}

func hasTTY(pod *v1.Pod, container string) bool {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == container {
				return list[i].TTY
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == container {
			return e.TTY
		}
	}
	return false
}
