package criruntime

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func (r *Runtime) podDir(pod types.UID) string { return filepath.Join(r.Dir, string(pod)) }

// LogFile returns the log of a run of a container, in the format of CRI: below Dir, or at the
// kubelet's place if a kubelet has started the run.
func (r *Runtime) LogFile(pod types.UID, container string, attempt int32) (dir, name string) {
	if _, err := os.Lstat(r.logFile(pod, container, attempt)); err != nil {
		if name := kubeletLog(pod, container, attempt); name != "" {
			return kubeletLogs, name
		}
	}
	return r.Dir, filepath.Join(string(pod), logPath(container, attempt))
}

func (r *Runtime) logFile(pod types.UID, container string, attempt int32) string {
	return filepath.Join(r.podDir(pod), logPath(container, attempt))
}

func logPath(container string, attempt int32) string {
	return fmt.Sprintf("%s/%d.log", container, attempt)
}

func (r *Runtime) messageFile(pod types.UID, container string, attempt int32) string {
	return filepath.Join(r.podDir(pod), container, fmt.Sprintf("%d.message", attempt))
}

// hostsFile has a name that no container has, whose directories lie beside it.
func (r *Runtime) hostsFile(pod types.UID) string { return filepath.Join(r.podDir(pod), "etc_hosts") }

// prepareFiles makes what a run of a container needs: a directory for its log, and an
// empty file for its last words, which anybody in the container may write.
func (r *Runtime) prepareFiles(pod types.UID, container string, attempt int32) error {
	if err := os.MkdirAll(filepath.Join(r.podDir(pod), container), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(r.messageFile(pod, container, attempt), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	return errors.Join(file.Chmod(0o666), file.Close()) // whatever the umask is
}

// removeRun removes the files of one run.
func (r *Runtime) removeRun(pod types.UID, container string, attempt int32) error {
	log := r.logFile(pod, container, attempt)
	files, err := rotatedLogs(log)
	if err != nil {
		return err
	}
	for _, file := range append(files, log, r.messageFile(pod, container, attempt)) {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// removeFiles removes a pod's directory, which has two levels.
func (r *Runtime) removeFiles(pod types.UID) error { return removeLevels(r.podDir(pod), 2) }

// removeLevels removes a file or a directory that has so many levels. One that has more is
// not empty in the end, and is an error.
func removeLevels(path string, levels int) (err error) {
	if info, bad := os.Lstat(path); levels > 0 && bad == nil && info.IsDir() {
		var all []string
		all, err = entriesOf(path)
		for _, file := range all {
			err = errors.Join(err, removeLevels(file, levels-1))
		}
	}
	if gone := os.Remove(path); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// entriesOf are the paths of what is in a directory, in the order of their names; of one that
// is not there, none. Unlike a pattern, the directory may have any name.
func entriesOf(dir string) (all []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		all = append(all, filepath.Join(dir, e.Name()))
	}
	return all, err
}

func (r *Runtime) podsWithFiles() (pods []types.UID, err error) {
	entries, err := os.ReadDir(r.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		pods = append(pods, types.UID(e.Name()))
	}
	return pods, err
}

// writeHosts writes the pod's hosts file: the node's where it has the node's network,
// else one with its own names. It keeps the file that containers have mounted.
func (r *Runtime) writeHosts(pod *v1.Pod, ips []string) error {
	var text strings.Builder
	if r.hasNodesNetwork(pod) {
		own, err := os.ReadFile("/etc/hosts")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		text.WriteString("# Kubernetes-managed hosts file (host network).\n")
		text.Write(own)
	} else {
		text.WriteString("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		for _, ip := range ips {
			fmt.Fprintf(&text, "%s\t%s\n", ip, strings.Join(r.names(pod), "\t"))
		}
	}
	for i, alias := range pod.Spec.HostAliases {
		if i == 0 {
			text.WriteString("\n# Entries added by HostAliases.\n")
		}
		fmt.Fprintf(&text, "%s\t%s\n", alias.IP, strings.Join(alias.Hostnames, "\t"))
	}
	file := r.hostsFile(pod.UID)
	if holds(file, text.String()) {
		return nil
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}

// holds reports whether a file has just this content. Containers write to the file, so
// that it may have any size.
func holds(file, content string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	is, err := io.ReadAll(io.LimitReader(f, int64(len(content))+1))
	return err == nil && string(is) == content
}
