package nfs

import (
	"errors"
	"strings"
	"testing"
)

func TestParseSource(t *testing.T) {
	tests := map[string]Source{
		"server:/path":        {"server", "/path"},
		"10.0.0.1:/":          {"10.0.0.1", "/"},
		"[fd00::1]:/a":        {"fd00::1", "/a"},
		"[fe80::1%eth0]:/a:b": {"fe80::1%eth0", "/a:b"},
		"s:/a]:/b c":          {"s", "/a]:/b c"},
	}
	for source, want := range tests {
		got, err := ParseSource(source)
		if err != nil || got != want {
			t.Errorf("%q = %+v, %v; want %+v", source, got, err, want)
		}
		if got.String() != source {
			t.Errorf("%q becomes %q", source, got)
		}
	}
	for _, source := range []string{
		"", ":", "server", "server:", ":/path", "server:path", "[fd00::1]/a", "[fd00::1:/a", "[server]:/a", "[10.0.0.1]:/a",
		"fd00::1:/a", "a,b:/p", "nfs://server/p", "a/b:/p", "a b:/p", "[]:/a",
	} {
		got, err := ParseSource(source)
		if _, ok := errors.AsType[*SourceError](err); !ok {
			t.Errorf("%q = %+v, %v", source, got, err)
		}
	}
}

// What is read is what the kernel reads back from what it is given.
func FuzzParseSource(f *testing.F) {
	for _, seed := range []string{"server:/path", "[fd00::1]:/a", "a:b:/c", "[x]:y", "s:/]:"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, source string) {
		s, err := ParseSource(source)
		if err != nil {
			return
		}
		if s.String() != source {
			t.Errorf("%q becomes %q", source, s)
		}
		kernelHost, kernelPath, _ := strings.Cut(source, ":")
		if inner, ok := strings.CutPrefix(source, "["); ok {
			kernelHost, kernelPath, _ = strings.Cut(inner, "]:")
		}
		if kernelHost != s.Host || kernelPath != s.Path {
			t.Errorf("%q is %+v here and %q, %q to the kernel", source, s, kernelHost, kernelPath)
		}
	})
}
