// Package containerenv resolves a container's environment as a kubelet does
// before it starts the container: envFrom in order, then env in order, a later
// name replacing an earlier one, $(NAME) in a value expanded by the variables
// before it, $$ a dollar that begins no reference.
//
// Of the kubelet's variables it leaves out those of services
// (KUBERNETES_SERVICE_HOST and friends): they need the cluster's services, which
// have no part in mounting volumes. It gives no HOME and no PATH either; those
// are the runtime's.
//
// A subPathExpr of a volumeMount is expanded with this environment, see
// [Environment.Map].
package containerenv
