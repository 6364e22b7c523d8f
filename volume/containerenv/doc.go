// Package containerenv resolves a container's environment as a kubelet does
// before it starts the container: envFrom in order, then env in order, a later
// name replacing an earlier one, $(NAME) in a value expanded by the variables
// before it, $$ a dollar that begins no reference.
//
// The variables of services are those that the kubelet gives, of the services that the
// caller has ([Sources]). It gives no HOME and no PATH; those are the runtime's.
//
// A subPathExpr of a volumeMount is expanded with this environment, see
// [Environment.Map].
package containerenv
