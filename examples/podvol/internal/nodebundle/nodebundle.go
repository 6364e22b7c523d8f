// Package nodebundle makes the archive of podvol fsck --bundle: what a maintainer needs to know
// of a node, without secrets.
package nodebundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/secretopt"
	"github.com/podvol/podvol/volume/kubeletroot"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Check refuses a path that exists, or at which a file would change the root directory. It
// returns the absolute path.
func Check(path, rootDir string) (string, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(absolute))
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(rootDir)
	if err != nil {
		real = rootDir
	}
	if rest, err := filepath.Rel(real, dir); err == nil && rest != ".." && !strings.HasPrefix(rest, "../") {
		return "", fmt.Errorf("%s lies in the root directory, which fsck does not change", path)
	}
	if _, err := os.Lstat(absolute); err == nil {
		return "", fmt.Errorf("%s exists", path)
	}
	return absolute, nil
}

// Write writes a new archive that only its owner can read, or nothing. problems are what fsck
// has printed; failed is its error, or nil.
func Write(path, rootDir string, problems any, failed error) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(path)
		}
	}()
	zipped := gzip.NewWriter(f)
	archive := tar.NewWriter(zipped)
	parts := []struct {
		name string
		make func(io.Writer) error
	}{
		{"node.json", func(w io.Writer) error { return writeNode(w, rootDir, failed) }},
		{"problems.json", func(w io.Writer) error { return writeJSON(w, problems) }},
		{"volumes.json", func(w io.Writer) error { return writeVolumes(w, rootDir) }},
		{"mountinfo", func(w io.Writer) error { return writeMountinfo(w) }},
		{"listing", func(w io.Writer) error { return writeListing(w, rootDir) }},
	}
	for _, part := range parts {
		var text bytes.Buffer
		if err := part.make(&text); err != nil { // what can be told is worth more than nothing
			fmt.Fprintf(&text, "\nnot complete: %s\n", secretopt.Option(err.Error()))
		}
		header := &tar.Header{Name: "podvol-bundle/" + part.name, Mode: 0o600, Size: int64(text.Len()), ModTime: time.Now()}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(text.Bytes()); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zipped.Close(), f.Sync())
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// writeNode says what ran where.
func writeNode(w io.Writer, rootDir string, failed error) error {
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return err
	}
	node := map[string]any{
		"rootDir": rootDir, "kernel": unix.ByteSliceToString(kernel.Release[:]), "machine": unix.ByteSliceToString(kernel.Machine[:]),
		"go": runtime.Version(), "podvol": "unknown", "time": time.Now().UTC().Format(time.RFC3339),
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		node["podvol"] = build.Main.Version
		for _, setting := range build.Settings {
			if strings.HasPrefix(setting.Key, "vcs.") {
				node[setting.Key] = setting.Value
			}
		}
	}
	if pid, runs := kubeletroot.Kubelet("/proc"); runs {
		node["kubelet"] = pid
	}
	if failed != nil {
		node["error"] = secretopt.Option(failed.Error())
	}
	return writeJSON(w, node)
}

// writeVolumes writes what the records say of each volume, without its specification, which
// may have secrets.
func writeVolumes(w io.Writer, rootDir string) error {
	volumes, err := volumemanager.Inspect(rootDir, table.Kernel())
	for i := range volumes {
		volumes[i].Source = secretopt.Source(volumes[i].Source)
	}
	if volumes == nil {
		volumes = []volumemanager.VolumeStatus{}
	}
	return errors.Join(writeJSON(w, volumes), err)
}

func writeMountinfo(w io.Writer) error {
	entries, err := table.Kernel().All()
	for _, e := range entries {
		if _, err := fmt.Fprintln(w, mountinfoLine(e)); err != nil {
			return err
		}
	}
	return err
}

// mountinfoLine is a line of proc_pid_mountinfo(5) without secrets.
func mountinfoLine(e mount.Entry) string {
	optional := strings.Join(append(e.Propagation, "-"), " ")
	return fmt.Sprintf("%d %d %d:%d %s %s %s %s %s %s %s", e.ID, e.ParentID, unix.Major(e.Device), unix.Minor(e.Device), octal(e.Root), octal(e.Target),
		maskOptions(e.Options), optional, octal(e.FSType), octal(cmp.Or(secretopt.Source(e.Source), "none")), maskOptions(e.SuperOptions))
}

func maskOptions(options []string) string {
	return octal(strings.Join(secretopt.Options(options), ","))
}

// octal escapes as the kernel does.
func octal(text string) string {
	return strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(text)
}

func writeListing(w io.Writer, rootDir string) error {
	truncated, err := kubeletroot.List(rootDir, 0, func(line string) { fmt.Fprintln(w, line) })
	if truncated {
		fmt.Fprintln(w, "… and more")
	}
	return err
}
