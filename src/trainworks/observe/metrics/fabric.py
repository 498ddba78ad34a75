"""Metrics of RDMA and Ethernet ports under the names of node_exporter, so that one rule reads either exporter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainworks.host.fabric import EthernetPort, NicPort
from trainworks.observe.metrics.family import MetricFamily, MetricKind, MetricSample

_STATES = {"DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4, "ACTIVE_DEFER": 5}
_WORD = 4
"""Bytes of the unit in which `port_rcv_data` and `port_xmit_data` count."""


def _rdma(name: str, text: str, file: str, kind: MetricKind = "counter") -> MetricFamily:
    return MetricFamily(f"node_infiniband_{name}", text, kind, ("device", "port"), f"/sys/class/infiniband: `{file}`")


def _ethernet(name: str, text: str, file: str, kind: MetricKind = "counter") -> MetricFamily:
    return MetricFamily(f"node_network_{name}", text, kind, ("device",), f"/sys/class/net: `{file}`")


_STATE = _rdma("state_id", "State of the port: 1 down, 2 init, 3 armed, 4 active.", "state", "gauge")
_RATE = _rdma("rate_bytes_per_second", "Rate of the link.", "rate", "gauge")
_RDMA_COUNTERS = {
    file: _rdma(name, text, file)
    for file, name, text in (
        ("port_rcv_data", "port_data_received_bytes_total", "Bytes received."),
        ("port_xmit_data", "port_data_transmitted_bytes_total", "Bytes sent."),
        ("port_rcv_packets", "port_packets_received_total", "Packets received."),
        ("port_xmit_packets", "port_packets_transmitted_total", "Packets sent."),
        ("port_xmit_wait", "port_transmit_wait_total", "Ticks with data to send and no credit from the other end."),
        ("port_rcv_errors", "port_errors_received_total", "Packets received with an error."),
        ("port_xmit_discards", "port_discards_transmitted_total", "Packets discarded instead of sent."),
        ("port_rcv_remote_physical_errors", "port_receive_remote_physical_errors_total", "Packets marked as bad."),
        ("symbol_error", "symbol_error_total", "Symbol errors."),
        ("link_downed", "link_downed_total", "Times that the link went down."),
        ("link_error_recovery", "link_error_recovery_total", "Times that the link recovered."),
        ("local_link_integrity_errors", "local_link_integrity_errors_total", "Bursts of physical errors."),
        ("excessive_buffer_overrun_errors", "excessive_buffer_overrun_errors_total", "Bursts of buffer overruns."),
        ("out_of_sequence", "out_of_sequence", "RoCE: packets out of sequence."),
        ("packet_seq_err", "packet_seq_err", "RoCE: sequence errors that the other end reported."),
        ("local_ack_timeout_err", "local_ack_timeout_err", "RoCE: acknowledgements that did not come."),
        ("out_of_buffer", "out_of_buffer", "RoCE: packets dropped because no receive was posted."),
        ("np_ecn_marked_roce_packets", "np_ecn_marked_roce_packets", "RoCE: packets that met congestion."),
        ("np_cnp_sent", "np_cnp_sent", "RoCE: congestion notifications sent."),
        ("rp_cnp_handled", "rp_cnp_handled", "RoCE: congestion notifications received, which slow the sender."),
    )
}
_UP = _ethernet("up", "1 if the link is up.", "operstate", "gauge")
_SPEED = _ethernet("speed_bytes", "Rate of the link in bytes per second.", "speed", "gauge")
_ETHERNET_COUNTERS = {
    file: _ethernet(name, text, file)
    for file, name, text in (
        ("rx_bytes", "receive_bytes_total", "Bytes received."),
        ("tx_bytes", "transmit_bytes_total", "Bytes sent."),
        ("rx_packets", "receive_packets_total", "Packets received."),
        ("tx_packets", "transmit_packets_total", "Packets sent."),
        ("rx_errors", "receive_errs_total", "Packets received with an error."),
        ("tx_errors", "transmit_errs_total", "Packets not sent because of an error."),
        ("rx_dropped", "receive_drop_total", "Received packets that were dropped."),
        ("tx_dropped", "transmit_drop_total", "Packets dropped instead of sent."),
        ("carrier_changes", "carrier_changes_total", "Times that the link went up or down."),
    )
}
FABRIC_FAMILIES = (_STATE, _RATE, *_RDMA_COUNTERS.values(), _UP, _SPEED, *_ETHERNET_COUNTERS.values())


def fabric_samples(rdma: Sequence[NicPort], ethernet: Sequence[EthernetPort]) -> Iterator[MetricSample]:
    """Every counter that a port has; the names of virtual interfaces are not among them."""
    for port in rdma:
        labels = (port.device, port.port)
        yield _STATE.sample(_STATES.get(port.state, 0), *labels)
        yield _RATE.sample(port.gbit_per_s * 1e9 / 8, *labels)
        for file, family in _RDMA_COUNTERS.items():
            if file in port.counters:
                yield family.sample(port.counters[file] * (_WORD if file.endswith("_data") else 1), *labels)
    for card in ethernet:
        yield _UP.sample(card.is_up, card.name)
        if card.bytes_per_s is not None:
            yield _SPEED.sample(card.bytes_per_s, card.name)
        for file, family in _ETHERNET_COUNTERS.items():
            if file in card.counters:
                yield family.sample(card.counters[file], card.name)
