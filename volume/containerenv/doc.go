// Package containerenv resolves a container's environment as a kubelet does before it
// starts the container: envFrom in order, then env in order. A later name replaces an
// earlier one; $(NAME) in a value is expanded by the variables before it; $$ is a dollar
// that begins no reference.
//
// The variables of services are the kubelet's, of the services that the caller has
// ([Sources]). HOME and PATH are left to the runtime. A volumeMount's subPathExpr is
// expanded with this environment, see [Environment.Map].
package containerenv
