package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/figures"
)

const (
	pageName = "PERFORMANCE.md"
	plotsDir = "performance" // beside the page
)

// page is the page on performance.
type page struct {
	Date, Machine string
	Took          time.Duration
	Sections      []section
}

// write writes the page and its plots into a directory, and removes older plots.
func (p page) write(dir string) error {
	plots := filepath.Join(dir, plotsDir)
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(plots, "*.svg"))
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	for _, s := range p.Sections {
		for _, r := range s.Records {
			if r.Curve == nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(plots, plotName(s.Package, r)), []byte(plot(*r.Curve)), 0o644); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, pageName), []byte(p.markdown()), 0o644)
}

var noWord = regexp.MustCompile(`[^a-z0-9]+`)

func plotName(dir string, r figures.Record) string {
	name := noWord.ReplaceAllString(strings.ToLower(filepath.Base(dir)+" "+r.Curve.What), "-")
	return strings.Trim(name, "-") + "-" + r.FileSystem + ".svg"
}

const head = `# Performance

Each row is a figure of podvol beside a peer, or beside a limit that it is to keep. Both sides
are measured in one run, in turn, and medians are compared. "CPU" is time on processors, of
podvol's own process: it stays the same when others use the machine too.

This page is written by one command, as root and on a machine that does nothing else:

` + "```sh\ngo run ./util/testenv/figures/page\n```" + `

It took %v on %s, %s.
Each row names the test that measured it. That test alone, held to its limits:

` + "```sh\nPODVOL_ASSERT_FIGURES=1 go test ./mount/host -run TestMountFigures -v\n```" + `

A ratio is podvol's figure divided by the peer's: below 1, podvol is ahead. A row is
behind if it is beyond its limit; in brackets is the ratio of the fastest rounds, which says how
much of that may be noise. "ext4" is a fresh file system on a loop device, "tmpfs" is memory.

The peers:

- **kubelet**: the kubelet's method, written again in the test where its code cannot be
  imported: filepath.Walk with lchown and chmod, its order of calls for volumes, a linear
  search for a claim's volume.
- **kubelet elsewhere**: what the kubelet's volume manager took (v1.32, the NFS plugin, a mounter
  in memory) on another machine with 2 processors, where its code cannot be imported. It waits
  by the clock, so that a faster machine would not make it faster.
- **mount-utils**: the package k8s.io/mount-utils itself.
- **bare calls**: the system calls or gRPC calls alone, which is what the kernel or the driver
  allows.
- **du -s**, **chgrp -R**, **os.WriteFile** and such are these programs and functions.
- Where a row has no peer, its limit is podvol's own promise.
`

// markdown is the page's text.
func (p page) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, head, p.Took, p.Machine, p.Date)
	p.behind(&b)
	for _, s := range p.Sections {
		s.rows(&b)
		s.curves(&b)
	}
	return b.String()
}

// behind lists what is beyond its limit.
func (p page) behind(b *strings.Builder) {
	b.WriteString("\n## Behind\n\n")
	none := true
	for _, s := range p.Sections {
		for _, r := range s.Records {
			switch {
			case r.Row != nil && r.Row.Behind():
				fmt.Fprintf(b, "- `%s`, %s: %s\n", s.Package, r.FileSystem, r.Row)
			case r.Curve != nil && r.Curve.Behind():
				fmt.Fprintf(b, "- `%s`, %s: %s\n", s.Package, r.FileSystem, r.Curve)
			default:
				continue
			}
			none = false
		}
	}
	if none {
		b.WriteString("Nothing is beyond its limit.\n")
	}
}

func (s section) rows(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n| Test | Measured | On | podvol | Peer | Ratio | Limit |\n| --- | --- | --- | --- | --- | --- | --- |\n", s.Package)
	for _, r := range s.Records {
		row := r.Row
		if row == nil {
			continue
		}
		peer, ratio, limit := "", "", ""
		if row.Peer != "" {
			peer, ratio = row.Peer+" "+row.Unit.Format(row.Theirs), fmt.Sprintf("%.3g", row.Ratio())
			if row.Fastest > 0 {
				ratio += fmt.Sprintf(" (%.3g)", row.Fastest)
			}
		}
		if row.Limit > 0 {
			if limit = fmt.Sprintf("%.3g", row.Limit); row.Peer == "" {
				limit = row.Unit.Format(row.Limit)
			}
			if row.Behind() {
				limit += " **behind**"
			}
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s |\n", topLevel(r.Test), row.What, r.FileSystem, row.Unit.Format(row.Ours), peer, ratio, limit)
	}
}

func (s section) curves(b *strings.Builder) {
	for _, r := range s.Records {
		if r.Curve == nil {
			continue
		}
		c := r.Curve
		fmt.Fprintf(b, "\n%s: %s, on %s. The last point is %.3g of the first", topLevel(r.Test), c.What, r.FileSystem, c.Growth())
		if c.Limit > 0 {
			fmt.Fprintf(b, " (limit %.3g)", c.Limit)
		}
		if c.Behind() {
			b.WriteString(": **behind**")
		}
		if collector := c.Collector(); collector != "" {
			b.WriteString("; " + collector)
		}
		fmt.Fprintf(b, ".\n\n![%s, by %s](%s/%s)\n", c.What, c.Of, plotsDir, plotName(s.Package, r))
	}
}

func topLevel(test string) string {
	name, _, _ := strings.Cut(test, "/")
	return name
}

// thisMachine tells of what the figures depend on.
func thisMachine() string {
	kernel := "an unknown kernel"
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		version, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-") // the rest is who built it
		kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + version
	}
	text := fmt.Sprintf("%d processors (%s), %s, %s", runtime.NumCPU(), processor(), kernel, runtime.Version())
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		text += ", at a load of " + strings.Fields(string(load))[0] + " before it"
	}
	return text
}

func processor() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
