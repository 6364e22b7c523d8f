// Package version tells of what a program is made.
package version

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
)

// Info is what a program is made of. Its keys are part of the command's contract; what is not
// known is left out.
type Info struct {
	// Version is that of the program's module: a tag, one that Go has made of the commit, or (devel).
	Version string `json:"version"`
	// Commit is the revision that was built, and CommitTime its time in RFC 3339.
	Commit     string `json:"commit,omitempty"`
	CommitTime string `json:"commitTime,omitempty"`
	// Modified: files were changed after the commit.
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// KubernetesAPI is the version of Kubernetes whose types of objects the program has.
	KubernetesAPI string `json:"kubernetesAPI,omitempty"`
}

// apiModule has the types of Kubernetes' objects; its v0.35.2 is that of Kubernetes v1.35.2.
const apiModule = "k8s.io/api"

// Of reads what Go has put into a program; nil is a program that was built without modules.
func Of(build *debug.BuildInfo) Info {
	info := Info{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if build == nil {
		return info
	}
	info.Version, info.Go = cmp.Or(build.Main.Version, info.Version), cmp.Or(build.GoVersion, info.Go)
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			info.Commit = s.Value
		case "vcs.time":
			info.CommitTime = s.Value
		case "vcs.modified":
			info.Modified = s.Value == "true"
		}
	}
	for _, m := range build.Deps {
		if m.Path != apiModule {
			continue
		}
		version := m.Version
		if m.Replace != nil {
			version = m.Replace.Version
		}
		if after, ok := strings.CutPrefix(version, "v0."); ok {
			info.KubernetesAPI = "v1." + after
		}
	}
	return info
}

// Command returns the command that prints it.
func Command(out io.Writer) *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "version",
		Short: "Print of what this program is made",
		Long: "Prints the version of the module, the commit, the version of Go, and the version of\n" +
			"Kubernetes whose objects podvol reads. Fields of newer versions are unknown to it.\n" +
			"go run notes no commit; go build and go install do.",
		RunE: func(*cobra.Command, []string) error {
			build, _ := debug.ReadBuildInfo()
			return Of(build).print(out, format)
		},
	}
	choice.AddOutput(c, &format, "text", "json", "yaml")
	return c
}

func (i Info) print(out io.Writer, format string) error {
	if format != "text" {
		return choice.Print(out, format, i)
	}
	_, err := out.Write(i.text())
	return err
}

func (i Info) text() []byte {
	commit := cmp.Or(i.Commit, "unknown")
	if i.CommitTime != "" {
		commit += " of " + i.CommitTime
	}
	if i.Modified {
		commit += ", with changes"
	}
	return fmt.Appendf(nil, "podvol      %s\ncommit      %s\nGo          %s %s\nKubernetes  %s\n",
		i.Version, commit, i.Go, i.Platform, cmp.Or(i.KubernetesAPI, "unknown"))
}
