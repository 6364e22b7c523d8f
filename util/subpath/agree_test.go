package subpath

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// answer is what a resolution comes to.
type answer struct {
	outcome  string
	dev, ino uint64
}

func answerOf(t testing.TB, k kernel, root *os.File, path string) answer {
	t.Helper()
	file, err := k.open(root, path)
	if err != nil {
		return answer{outcome: outcome(err)}
	}
	defer file.Close()
	st, err := stat(int(file.Fd()))
	must(t, err)
	return answer{outcome: "opened", dev: st.Dev, ino: st.Ino}
}

func randomName(r *rand.Rand) string {
	return string("abcd"[r.IntN(4)])
}

// randomPath is often a path that exists, and for links it may have "..".
func randomPath(r *rand.Rand, dots bool) string {
	var p strings.Builder
	for n := range 1 + r.IntN(5) {
		if n > 0 {
			p.WriteString([]string{"/", "/", "/", "//", "/./"}[r.IntN(5)])
		}
		if dots && r.IntN(3) == 0 {
			p.WriteString("..")
			continue
		}
		p.WriteString(randomName(r))
	}
	if r.IntN(8) == 0 {
		p.WriteString("/")
	}
	return p.String()
}

// randomTree fills a volume, mostly with what can be resolved.
func randomTree(r *rand.Rand, root *os.File) (description []string) {
	volume, err := os.OpenRoot(root.Name())
	if err != nil {
		return []string{err.Error()}
	}
	defer volume.Close()
	for range 30 {
		p := strings.Trim(randomPath(r, false), "/")
		switch r.IntN(5) {
		case 0:
			_ = volume.WriteFile(p, nil, 0o644)
			description = append(description, "touch "+p)
		case 1, 2:
			_ = volume.MkdirAll(p, 0o755)
			description = append(description, "mkdir -p "+p)
		default:
			target := randomPath(r, true)
			if r.IntN(12) == 0 {
				target = "/" + target
			}
			_ = volume.Symlink(target, p)
			description = append(description, "ln -s "+target+" "+p)
		}
	}
	return description
}

// The walk and the kernel give the same answers on random trees.
func TestBothWaysAgree(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 1))
		root := newVolume(t)
		description := randomTree(r, root)
		for range 100 {
			path := randomPath(r, false)
			kernels, ours := answerOf(t, system(), root, path), answerOf(t, walkOnly(), root, path)
			seen[ours.outcome]++
			if others := answerOf(t, otherSystem(), root, path); others != ours {
				t.Fatalf("seed %d, %q: other systems' walk says %+v, the walk %+v, after\n%s", seed, path, others, ours, strings.Join(description, "\n"))
			}
			if kernels != ours {
				t.Fatalf("seed %d, %q: the kernel says %+v, the walk %+v, after\n%s", seed, path, kernels, ours, strings.Join(description, "\n"))
			}
		}
	}
	t.Logf("%v", seen)
	for _, want := range []string{"opened", "escape", "missing", "no directory", "too many links"} {
		if seen[want] == 0 {
			t.Errorf("the trees never show what is %s", want)
		}
	}
}

// Each line of tree makes one thing: "d dir", "f file", "l link target".
func FuzzBothWaysAgree(f *testing.F) {
	f.Add("d a\nl a/b ../a\nf a/c", "a/b/c")
	f.Add("l a /\nd b", "a/b")
	f.Add("l a ..\nl b a/..", "b/../c")
	f.Add("l a a/a\nd b/c", "a//./b/")
	f.Add("f a\nl b a/\nl c a/..", "b/c")
	f.Add("d a/b\nl a/b/c ../../a/./b/../b/", "a/b/c/c/c/")
	f.Fuzz(func(t *testing.T, tree, path string) {
		if Check(path) != nil || len(tree) > 4096 {
			return
		}
		root := newVolume(t)
		volume, err := os.OpenRoot(root.Name())
		must(t, err)
		defer volume.Close()
		for line := range strings.Lines(tree) {
			words := append(strings.SplitN(strings.TrimSpace(line), " ", 3), "", "")
			switch words[0] {
			case "d":
				_ = volume.MkdirAll(words[1], 0o755)
			case "f":
				_ = volume.WriteFile(words[1], nil, 0o644)
			case "l":
				_ = volume.Symlink(words[2], words[1])
			}
		}
		if kernels, ours := answerOf(t, system(), root, path), answerOf(t, walkOnly(), root, path); kernels != ours {
			t.Errorf("the kernel says %+v, the walk %+v", kernels, ours)
		}
		for name, k := range map[string]kernel{"openat2": system(), "walk": walkOnly(), "other systems": otherSystem()} {
			file, err := k.openOrMake(t.Context(), root, path)
			if err == nil {
				file.Close()
			} else if got := outcome(err); got == "other" || got == "busy" {
				t.Errorf("OpenOrMake, %s: %v", name, err)
			}
		}
		hostUntouched(t, root)
	})
}

func BenchmarkOpen(b *testing.B) {
	root := newVolume(b)
	touch(b, root, "a/b/c/file")
	link(b, root, "link", "a/b")
	for _, path := range []string{"a", "a/b/c/file", "link/c/file"} {
		for name, k := range map[string]kernel{"openat2": system(), "walk": walkOnly()} {
			b.Run(fmt.Sprintf("%s/%s", name, strings.ReplaceAll(path, "/", "+")), func(b *testing.B) {
				for b.Loop() {
					fd, err := k.resolve(place{fd: int(root.Fd()), volume: root.Name(), path: path})
					if err != nil {
						b.Fatal(err)
					}
					unix.Close(fd)
				}
			})
		}
	}
}
