package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podvol/podvol/util/testenv/imagearchive"
)

// pauseImage is the image of sandboxes.
const pauseImage = "podvol.test/pause:1"

// shellImage is busybox.
const shellImage = "podvol.test/busybox:1"

// writeImages makes the images that the tests ask for, as far as they can be made here,
// under all the names and versions by which they ask.
func writeImages(ctx context.Context, o options) error {
	listed, err := output(ctx, "env", "TMPDIR="+filepath.Join(o.Dir, "tmp"), filepath.Join(o.Assets, "e2e.test"), "--list-images")
	if err != nil {
		return err
	}
	userland, err := userland(ctx, o)
	if err != nil {
		return err
	}
	named := map[string]*imagearchive.Image{
		"pause": pause(o), "agnhost": agnhost(o, userland), "busybox": busybox(userland), "nginx": webServer(userland),
		"glibc-dns-testing": busybox(userland), // most tests with this image only want a shell
	}
	named["pause"].Names = append(named["pause"].Names, pauseImage)
	named["busybox"].Names = append(named["busybox"].Names, shellImage)
	for name := range strings.FieldsSeq(listed) {
		repository, _, _ := strings.Cut(path.Base(name), ":")
		if image := named[repository]; image != nil && strings.HasPrefix(name, "registry.k8s.io/") {
			image.Names = append(image.Names, name)
		}
	}
	archive, err := os.Create(filepath.Join(o.Dir, "images.tar"))
	if err != nil {
		return err
	}
	defer archive.Close()
	if o.DaemonSets {
		named["node"], named["controller"] = ofExample(o, "virtualkubelet"), ofExample(o, "controller")
	}
	all, err := csiImages(ctx, o)
	if err != nil {
		return err
	}
	for _, image := range named {
		all = append(all, *image)
	}
	if err := imagearchive.Write(archive, all...); err != nil {
		return err
	}
	return archive.Close()
}

func program(at, source string) imagearchive.File {
	return imagearchive.File{Path: at, Source: source, Mode: 0o755}
}

func directory(at string, mode fs.FileMode) imagearchive.File {
	return imagearchive.File{Path: at, Mode: fs.ModeDir | mode}
}

func text(at, content string) imagearchive.File {
	return imagearchive.File{Path: at, Content: []byte(content), Mode: 0o644}
}

// userland are busybox, its names, and what every image has beside them.
func userland(ctx context.Context, o options) ([]imagearchive.File, error) {
	const source = "/bin/busybox"
	names, err := output(ctx, source, "--list-full")
	if err != nil {
		return nil, fmt.Errorf("%w: is busybox-static installed?", err)
	}
	var files []imagearchive.File
	for _, dir := range []string{"bin", "sbin", "usr", "usr/bin", "usr/sbin", "etc", "root", "var", "var/log", "run", "mnt", "home"} {
		files = append(files, directory(dir, 0o755))
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		files = append(files, directory(dir, 0o777|fs.ModeSticky))
	}
	instead, err := insteadOfBusybox(ctx, o)
	if err != nil {
		return nil, err
	}
	files = append(files, instead...)
	files = append(files, program("bin/busybox", source),
		text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534::/home:/bin/false\n"),
		text("etc/group", "root:x:0:\ngroup-defined-in-image:x:50000:user-defined-in-image\nuser-defined-in-image:x:1000:\nnogroup:x:65534:\n"))
	for name := range strings.FieldsSeq(names) {
		taken := slices.ContainsFunc(files, func(file imagearchive.File) bool { return file.Path == name })
		if !taken && path.Dir(name) != "." {
			files = append(files, imagearchive.File{Path: name, Link: "/bin/busybox"})
		}
	}
	return files, nil
}

// insteadOfBusybox returns programs for tests that busybox cannot serve: they enter a node's
// mounts and run its programs, need sockets in the file system, or write past the cache. The
// shell is replaced, too: busybox' shell prefers its own programs to these.
func insteadOfBusybox(ctx context.Context, o options) ([]imagearchive.File, error) {
	names := []string{"/usr/bin/nsenter", "/bin/bash", "/bin/dd"}
	listed, err := output(ctx, "ldd", names...)
	if err != nil {
		return nil, err
	}
	for word := range strings.FieldsSeq(listed) {
		if strings.HasPrefix(word, "/") && !strings.HasSuffix(word, ":") && !slices.Contains(names, word) {
			names = append(names, word)
		}
	}
	files := []imagearchive.File{program("usr/bin/nc", filepath.Join(o.Dir, "programs/pause")), {Path: "bin/sh", Link: "bash"}}
	for _, name := range names {
		files = append(files, program(name[1:], name))
	}
	return files, nil
}

func environment() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
}

// pause has no other file: see ../pause.
func pause(o options) *imagearchive.Image {
	return &imagearchive.Image{Entrypoint: []string{"/pause"}, Env: environment(),
		Files: []imagearchive.File{program("pause", filepath.Join(o.Dir, "programs/pause"))}}
}

// ofExample has nothing but an example's program, under the name of its manifest.
func ofExample(o options, name string) *imagearchive.Image {
	return &imagearchive.Image{Names: []string{"registry.example.com/podvol-" + name + ":latest"}, Entrypoint: []string{"/" + name}, Env: environment(),
		Files: []imagearchive.File{program(name, filepath.Join(o.Dir, "programs", name)), directory("tmp", 0o777|fs.ModeSticky)}}
}

// agnhost is the tests' own program, with busybox in place of Alpine: it lacks curl, dig,
// iperf, socat and CoreDNS.
func agnhost(o options, userland []imagearchive.File) *imagearchive.Image {
	return &imagearchive.Image{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: environment(),
		Files: append(userland[:len(userland):len(userland)], directory("uploads", 0o755), program("agnhost", filepath.Join(o.Assets, "agnhost")),
			imagearchive.File{Path: "agnhost-2", Link: "agnhost"})}
}

func busybox(userland []imagearchive.File) *imagearchive.Image {
	return &imagearchive.Image{Cmd: []string{"sh"}, Env: environment(), Files: userland}
}

// webServer stands for nginx: busybox' server, of the same files at the same port.
func webServer(userland []imagearchive.File) *imagearchive.Image {
	return &imagearchive.Image{Cmd: []string{"httpd", "-f", "-p", "80", "-h", "/usr/share/nginx/html"}, Env: environment(),
		Files: append(userland[:len(userland):len(userland)], directory("usr/share", 0o755), directory("usr/share/nginx", 0o755), directory("usr/share/nginx/html", 0o755),
			text("usr/share/nginx/html/index.html", "Welcome\n"))}
}
