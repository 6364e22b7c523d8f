package standalone

import (
	"log/slog"

	"github.com/podvol/podvol/volume/selinux"
)

// nodeLabels are this machine's SELinux labels. They are nil if the machine has
// none, or does not say which labels containers' files have; then runtimes label
// them.
func nodeLabels(log *slog.Logger) selinux.Labels {
	labels, enabled, err := selinux.ReadNodeLabels()
	switch {
	case err != nil && log != nil:
		log.Warn("volumes are not mounted with SELinux labels", "error", err)
		return nil
	case err != nil || !enabled:
		return nil
	}
	return labels
}
