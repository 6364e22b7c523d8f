package kubeletapi

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A log is read by run, lines, bytes, time and stream; parts of a line are put together.
func TestLogs(t *testing.T) {
	n, url, client, a := serve(t)
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(n.logs(), name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("main-0.log", "2026-01-01T00:00:00.5Z stdout F before\n")
	write("main-1.log", "2026-01-01T00:00:01.5Z stdout F one\n2026-01-01T00:00:02.5Z stderr F two\n2026-01-01T00:00:03.5Z stdout P thr\n2026-01-01T00:00:03.6Z stdout F ee\n")
	c := client(a.user("apiserver"))
	for query, want := range map[string]string{
		"":                                  "one\ntwo\nthree\n",
		"?previous=true":                    "before\n",
		"?tailLines=2":                      "three\n",
		"?tailLines=3":                      "two\nthree\n",
		"?tailLines=0":                      "",
		"?limitBytes=5":                     "one\nt",
		"?sinceTime=2026-01-01T00:00:02Z":   "two\nthree\n",
		"?tailLines=9223372036854775807":    "one\ntwo\nthree\n",
		"?tailLines=1&stream=Stdout":        "ee\n",
		"?sinceSeconds=1":                   "",
		"?sinceSeconds=9223372036854775807": "one\ntwo\nthree\n",
		"?stream=Stderr":                    "two\n",
		"?timestamps=true&tailLines=3":      "2026-01-01T00:00:02.5Z two\n2026-01-01T00:00:03.5Z three\n",
	} {
		if code, says := get(t, c, url+"/containerLogs/shop/web/main"+query); code != 200 || says != want {
			t.Errorf("%q: %d, %q", query, code, says)
		}
	}
	for path, want := range map[string]int{"shop/web/none": 400, "shop/none/main": 404, "shop/web/waits": 400, "shop/web/main?tailLines=-1": 400, "shop/web/main?sinceTime=x": 400} {
		if code, says := get(t, c, url+"/containerLogs/"+path); code != want {
			t.Errorf("%s: %d, %s", path, code, says)
		}
	}
}

// A link leads nowhere, at whatever place of a log's path below the node's directory.
func TestLogsBehindLinks(t *testing.T) {
	n, url, client, a := serve(t)
	c := client(a.user("apiserver"))
	if err := os.WriteFile(filepath.Join(n.logs(), "main-1.log"), []byte("2026-01-01T00:00:01Z stdout F one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, says := get(t, c, url+"/containerLogs/shop/web/main")
	if code != 200 || says != "one\n" {
		t.Fatalf("%d, %q", code, says)
	}
	for _, path := range []string{n.logs() + "/main-1.log", n.logs(), filepath.Dir(n.logs())} {
		if err := errors.Join(os.Rename(path, n.dir+"/elsewhere"), os.Symlink(n.dir+"/elsewhere", path)); err != nil {
			t.Fatal(err)
		}
		if code, says := get(t, c, url+"/containerLogs/shop/web/main"); code != 404 || strings.Contains(says, "one\n") {
			t.Errorf("%s is a link: %d, %q", path, code, says)
		}
		if err := errors.Join(os.Remove(path), os.Rename(n.dir+"/elsewhere", path)); err != nil {
			t.Fatal(err)
		}
	}
}

// All who follow logs share one instance of inotify, which ends with the last of them.
func TestFollowersShareInotify(t *testing.T) {
	dir := t.TempDir()
	var files []*os.File
	for _, name := range []string{"a", "b"} {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		files = append(files, file)
	}
	var g writeWatcher
	var grown []<-chan struct{}
	var stops []func()
	for _, file := range []*os.File{files[0], files[0], files[1]} {
		one, stop, err := g.watch(file)
		if err != nil {
			t.Fatal(err)
		}
		grown, stops = append(grown, one), append(stops, stop)
	}
	all := g.events
	write := func(file *os.File) {
		t.Helper()
		if _, err := file.WriteString("x"); err != nil {
			t.Fatal(err)
		}
	}
	write(files[0])
	<-grown[0]
	<-grown[1]
	stops[0]()
	stops[0]()
	write(files[0])
	<-grown[1]
	write(files[1])
	<-grown[2]
	if len(grown[0]) > 0 || g.events != all {
		t.Error("who has stopped is told, or there is another instance")
	}
	stops[1]()
	stops[2]()
	if g.events != nil || len(g.waiting) > 0 {
		t.Error("the instance is left")
	}
	one, stop, err := g.watch(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	write(files[0])
	<-one
}

// A log is followed until the container has ended.
func TestLogIsFollowed(t *testing.T) {
	n, url, client, a := serve(t)
	file, err := os.Create(filepath.Join(n.logs(), "main-1.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	response, err := client(a.user("apiserver")).Get(url + "/containerLogs/shop/web/main?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	for _, word := range []string{"one\n", "two\n"} {
		if _, err := file.WriteString("2026-01-01T00:00:01Z stdout F " + word); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != word {
			t.Fatalf("%q, %v", got, err)
		}
	}
	n.mu.Lock()
	n.pods[0].Status.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
	n.mu.Unlock()
	if rest, err := io.ReadAll(response.Body); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// A log that is rotated is followed in the next file, after its own end. A link in its place
// is not.
func TestARotatedLogIsFollowed(t *testing.T) {
	n, url, client, a := serve(t)
	log := filepath.Join(n.logs(), "main-1.log")
	line := func(word string) []byte { return []byte("2026-01-01T00:00:01Z stdout F " + word + "\n") }
	if err := os.WriteFile(log, line("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := client(a.user("apiserver"))
	response, err := c.Get(url + "/containerLogs/shop/web/main?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	expect := func(words string) {
		t.Helper()
		got := make([]byte, len(words))
		if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != words {
			t.Fatalf("%q, %v", got, err)
		}
	}
	expect("one\n")
	if err := os.Rename(log, log+".0"); err != nil {
		t.Fatal(err)
	}
	old, err := os.OpenFile(log+".0", os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Write(line("two")); err != nil || old.Close() != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, line("three"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect("two\nthree\n")
	if err := errors.Join(os.Remove(log), os.Symlink(log+".0", log)); err != nil {
		t.Fatal(err)
	}
	if code, says := get(t, c, url+"/containerLogs/shop/web/main"); code != 404 {
		t.Errorf("a link: %d, %q", code, says)
	}
}
