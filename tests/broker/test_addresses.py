"""Where the other nodes are."""

from __future__ import annotations

from headrace.broker.addresses import AddressBook
from headrace.broker.image import BrokerRecord, Image, apply


def test_the_image_goes_before_hints_and_what_was_told_lately_before_the_image():
    book = AddressBook()
    assert book.get(2) is None
    book.hint({2: ("old", 1)})
    assert book.get(2) == ("old", 1)
    image = apply(Image(), [BrokerRecord(2, "known", 2), BrokerRecord(3, "third", 3)])
    book.changed(Image(), image)
    assert book.get(2) == ("known", 2)
    book.told(2, ("moved", 4))
    assert book.get(2) == ("moved", 4)
    later = apply(image, [BrokerRecord(3, "third", 5)])
    book.changed(image, later)
    assert book.get(2) == ("moved", 4)
    book.changed(later, apply(later, [BrokerRecord(2, "registered", 6)]))
    assert book.get(2) == ("registered", 6)
    assert book.others(3) == [("registered", 6)]
